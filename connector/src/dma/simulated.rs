//! A DMA engine of a simulated host, with every step of MEM-M9 a place of its own.

use std::sync::{Mutex, PoisonError};

use cxl_shm::fabric::Fabric;
use cxl_shm::units::{Extent, LineRange};
use cxl_shm::verify::simulated::{DmaCache, SimulatedHost};

use super::checksum::RunningChecksum;
use super::job::{check_layer, check_layers};
use super::layers::store_each;
use super::{Checksum, DmaEngine, DmaError, LayeredSource, Layers, LoadJob, StoreJob};

/// The engine of a simulated host: bytes move as `cache` says, the flushes are this engine's, and
/// suppressing one of them is a mutation that some schedule has to notice.
///
/// # Example
/// ```
/// use rackline::dma::{DmaEngine, LoadJob, SimulatedDma, StoreJob};
/// use cxl_shm::verify::simulated::{DmaCache, SimulatedRack};
/// use cxl_shm::units::Extent;
///
/// let rack = SimulatedRack::sticky(2, 8192);
/// let writer = SimulatedDma::new(rack.host(0), DmaCache::Allocate);
/// let reader = SimulatedDma::new(rack.host(1), DmaCache::Bypass);
/// let payload = Extent::new(4096, 5).unwrap();
/// writer.fail_after(1);
/// let job = StoreJob { payload, parts: &[&b"hello"[..]] };
/// let results = writer.store(&[job, job]);
/// assert!(results[0].is_ok() && results[1].is_err());
/// # let stored = writer.store(&[job]);
/// let mut bytes = [0; 5];
/// let loaded = reader.load(&mut [LoadJob { payload, parts: vec![&mut bytes[..]] }]);
/// assert_eq!((loaded, &bytes), (stored, b"hello"));
/// ```
#[derive(Debug)]
pub struct SimulatedDma {
    host: SimulatedHost,
    cache: DmaCache,
    /// Jobs until the one that fails.
    jobs_to_failure: Mutex<Option<u64>>,
}

impl SimulatedDma {
    /// An engine of `host` that treats its caches as `cache` says.
    #[must_use]
    pub fn new(host: SimulatedHost, cache: DmaCache) -> Self {
        Self { host, cache, jobs_to_failure: Mutex::new(None) }
    }

    /// Lets `jobs` more jobs succeed, stores and loads counted together, and the one after them
    /// fail with [`DmaError::Device`], half done. The ones after that succeed again. Jobs that are
    /// refused before they start do not count.
    pub fn fail_after(&self, jobs: u64) {
        *self.jobs_to_failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(jobs);
    }

    /// Counts a job, and says of how many of its bytes the device moves: all, or half of them when
    /// this is the one to fail.
    fn moved(&self, payload: Extent) -> Result<Extent, Extent> {
        let mut to_failure = self.jobs_to_failure.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = *to_failure == Some(0);
        *to_failure = to_failure.and_then(|jobs| jobs.checked_sub(1));
        if !fails {
            return Ok(payload);
        }
        Err(payload.part(0, payload.bytes() / 2).expect("half of a payload lies in it"))
    }

    /// Has what was stored to `payloads` arrive at the device.
    fn make_arrive(&self, payloads: impl Iterator<Item = Extent> + Clone) {
        let stored = || payloads.clone().map(LineRange::covering);
        // The engine may have left the payload in this host's caches (MEM-M9), and a fence need not
        // wait for the device (MEM-M2).
        for lines in stored() {
            self.host.write_back(lines);
        }
        self.host.fence();
        for lines in stored() {
            self.host.read_back(lines);
        }
    }

    fn store_one(&self, payload: Extent, parts: &[&[u8]]) -> Result<Checksum, DmaError> {
        let bytes = parts.concat();
        match self.moved(payload) {
            Ok(all) => {
                self.host.dma_write(all, &bytes, self.cache);
                Ok(Checksum::of(&[&bytes]))
            }
            Err(half) => {
                self.host.dma_write(half, &bytes[..bytes.len() / 2], self.cache);
                Err(failure(payload))
            }
        }
    }

    fn load_one(
        &self,
        payload: Extent,
        job: &mut LoadJob<&mut [u8]>,
    ) -> Result<Checksum, DmaError> {
        let mut bytes: Vec<u8> = job.parts.iter().flat_map(|part| part.iter().copied()).collect();
        let result = match self.moved(payload) {
            Ok(all) => {
                self.host.dma_read(all, &mut bytes, self.cache);
                Ok(Checksum::of(&[&bytes]))
            }
            Err(half) => {
                let middle = bytes.len() / 2;
                self.host.dma_read(half, &mut bytes[..middle], self.cache);
                Err(failure(payload))
            }
        };
        let mut rest = bytes.as_slice();
        for part in &mut job.parts {
            let (now, later) = rest.split_at(part.len());
            part.copy_from_slice(now);
            rest = later;
        }
        result
    }
}

fn failure(payload: Extent) -> DmaError {
    DmaError::Device { payload, reason: "a failure was asked for".to_owned() }
}

impl DmaEngine for SimulatedDma {
    type Source<'a> = &'a [u8];
    type Destination<'a> = &'a mut [u8];

    fn store(&self, jobs: &[StoreJob<'_>]) -> Vec<Result<Checksum, DmaError>> {
        let region_bytes = self.host.bytes();
        let results: Vec<_> = jobs
            .iter()
            .map(|job| job.check(region_bytes).and_then(|at| self.store_one(at, job.parts)))
            .collect();
        let stored = jobs.iter().map(|job| job.payload).zip(&results);
        self.make_arrive(stored.filter(|(_, result)| result.is_ok()).map(|(payload, _)| payload));
        results
    }

    fn load(&self, jobs: &mut [LoadJob<&mut [u8]>]) -> Vec<Result<Checksum, DmaError>> {
        let checked: Vec<_> = jobs.iter().map(|job| job.check(self.host.bytes())).collect();
        // The engine may read through this host's caches (MEM-M9): drop what they hold.
        for payload in checked.iter().flatten() {
            self.host.invalidate(LineRange::covering(*payload));
        }
        self.host.fence();
        let each = checked.into_iter().zip(jobs);
        each.map(|(checked, job)| checked.and_then(|at| self.load_one(at, job))).collect()
    }

    fn load_by_layers(
        &self,
        mut jobs: Vec<LoadJob<&mut [u8]>>,
        layers: &Layers,
        arrived: &mut dyn FnMut(usize),
    ) -> Vec<Result<Checksum, DmaError>> {
        let mut loading: Vec<_> = jobs
            .iter()
            .map(|job| {
                let payload = job.check_layers(layers, self.host.bytes())?;
                Ok((payload, RunningChecksum::new(), self.moved(payload).is_err()))
            })
            .collect();
        for layer in 0..layers.count() {
            // Lines may have come back since the layer before (MEM-M9): each is dropped when its
            // layer is read.
            for (payload, ..) in loading.iter().flatten() {
                self.host.invalidate(LineRange::covering(layers.read_with(*payload, layer)));
            }
            self.host.fence();
            for (loading, job) in loading.iter_mut().zip(jobs.iter_mut()) {
                let Ok((payload, checksum, fails)) = loading else { continue };
                let lines = layers.read_with(*payload, layer);
                let mut bytes = vec![0; length(lines.bytes())];
                self.host.dma_read(lines, &mut bytes, self.cache);
                checksum.add(&bytes);
                scatter(&bytes, &mut job.parts);
                if *fails && layer == layers.count() / 2 {
                    *loading = Err(failure(*payload));
                }
            }
            arrived(layer);
        }
        let loaded = loading.into_iter();
        loaded.map(|loaded| loaded.map(|(_, checksum, _)| checksum.finish())).collect()
    }

    fn store_by_layers(
        &self,
        payloads: &[Extent],
        layers: &Layers,
        source: &mut dyn LayeredSource<Self>,
    ) -> Option<Vec<Result<Checksum, DmaError>>> {
        let mut storing: Vec<_> = payloads
            .iter()
            .map(|payload| {
                let payload = check_layers(*payload, layers, self.host.bytes())?;
                Ok((payload, RunningChecksum::new(), self.moved(payload).is_err()))
            })
            .collect();
        let stored = store_each(layers, payloads.len(), source, &mut |layer, parts| {
            for (storing, parts) in storing.iter_mut().zip(parts) {
                let Ok((payload, checksum, fails)) = storing else { continue };
                if let Err(error) = check_layer(*payload, layers.layer_bytes(layer), parts) {
                    *storing = Err(error);
                    continue;
                }
                let bytes = parts.concat();
                self.host.dma_write(layers.of(*payload, layer), &bytes, self.cache);
                checksum.add(&bytes);
                if *fails && layer == layers.count() / 2 {
                    *storing = Err(failure(*payload));
                }
            }
        });
        if !stored {
            return None;
        }
        self.make_arrive(storing.iter().flatten().map(|(payload, ..)| *payload));
        let stored = storing.into_iter();
        Some(stored.map(|stored| stored.map(|(_, checksum, _)| checksum.finish())).collect())
    }
}

/// Puts `bytes` at the start of `parts`, which is borrowed no more then.
fn scatter(mut bytes: &[u8], parts: &mut [&mut [u8]]) {
    for part in parts {
        let (now, later) = bytes.split_at(bytes.len().min(part.len()));
        let (filled, rest) = std::mem::take(part).split_at_mut(now.len());
        filled.copy_from_slice(now);
        *part = rest;
        bytes = later;
    }
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("it lies in memory")
}

#[cfg(test)]
mod tests {
    use cxl_shm::units::LineOffset;
    use cxl_shm::verify::simulated::SimulatedRack;

    use super::*;
    use crate::dma::CopyLayer;

    const LINES: usize = 5;
    const BYTES: usize = LINES * 64 - 3;

    fn payload() -> Extent {
        Extent::new(4096, BYTES as u64).unwrap()
    }

    fn engine(rack: &SimulatedRack, host: usize, cache: DmaCache) -> SimulatedDma {
        SimulatedDma::new(rack.host(host), cache)
    }

    fn store(dma: &SimulatedDma, bytes: &[u8]) -> Result<Checksum, DmaError> {
        dma.store(&[StoreJob { payload: payload(), parts: &[&bytes[..7], &bytes[7..]] }]).remove(0)
    }

    fn load(dma: &SimulatedDma, bytes: &mut [u8]) -> Result<Checksum, DmaError> {
        let (a, b) = bytes.split_at_mut(100);
        dma.load(&mut [LoadJob { payload: payload(), parts: vec![a, b] }]).remove(0)
    }

    /// Layers that share lines.
    fn layers() -> Layers {
        Layers::new([100, 90, BYTES as u64 - 190])
    }

    struct Ready<'a>(&'a [u8]);

    impl LayeredSource<SimulatedDma> for Ready<'_> {
        fn layer(&mut self, layer: usize, copy: &mut CopyLayer<'_, SimulatedDma>) -> bool {
            let at = layers().of(payload(), layer);
            let start = length(at.offset() - payload().offset());
            let end = start + length(at.bytes());
            copy(&[vec![&self.0[start..start + 1], &self.0[start + 1..end]]]);
            true
        }
    }

    fn store_by_layers(dma: &SimulatedDma, bytes: &[u8]) -> Result<Checksum, DmaError> {
        dma.store_by_layers(&[payload()], &layers(), &mut Ready(bytes)).unwrap().remove(0)
    }

    fn load_by_layers(dma: &SimulatedDma, bytes: &mut [u8]) -> Result<Checksum, DmaError> {
        let (a, b) = bytes.split_at_mut(77);
        let mut told = Vec::new();
        let jobs = vec![LoadJob { payload: payload(), parts: vec![a, b] }];
        let loaded = dma.load_by_layers(jobs, &layers(), &mut |layer| told.push(layer)).remove(0);
        assert_eq!(told, [0, 1, 2]);
        loaded
    }

    type Store = fn(&SimulatedDma, &[u8]) -> Result<Checksum, DmaError>;
    type Load = fn(&SimulatedDma, &mut [u8]) -> Result<Checksum, DmaError>;
    /// Whole payloads, and layer by layer.
    const WAYS: [(Store, Load); 2] = [(store, load), (store_by_layers, load_by_layers)];

    /// A payload is stored over an older one that the reader still has in its caches. Says whether
    /// the reader gets the new one.
    fn arrives(rack: &SimulatedRack, cache: DmaCache, (store, load): (Store, Load)) -> bool {
        let (writer, reader) = (engine(rack, 0, cache), engine(rack, 1, cache));
        for line in 0..LINES as u64 {
            rack.host(1).read_line(LineOffset::new(4096 + line * 64).unwrap());
        }
        let bytes: Vec<u8> = (1..=u8::MAX).cycle().take(BYTES).collect();
        let stored = store(&writer, &bytes).unwrap();
        let mut found = vec![0; bytes.len()];
        let loaded = load(&reader, &mut found).unwrap();
        assert_eq!(loaded, Checksum::of(&[&found]), "the checksum is of what was loaded");
        assert_eq!(loaded == stored, found == bytes);
        found == bytes
    }

    #[test]
    fn every_flush_and_fence_is_needed() {
        for way in WAYS {
            let caches = [DmaCache::Bypass, DmaCache::Allocate];
            let racks = caches.map(|cache| {
                let rack = SimulatedRack::sticky(2, 8192);
                assert!(arrives(&rack, cache, way), "{cache:?}");
                rack
            });
            let sites = racks[1].sites();
            assert_eq!(sites.len(), 5, "{sites:?}");
            assert_eq!(racks[0].sites(), sites);
            for site in sites {
                let noticed = caches.iter().any(|cache| {
                    let rack = SimulatedRack::sticky(2, 8192);
                    rack.suppress(site);
                    !arrives(&rack, *cache, way)
                });
                assert!(noticed, "nothing went wrong without {site}");
            }
        }
    }

    #[test]
    fn busy_caches_and_reordering_engines_do_no_harm() {
        for seed in 0..200 {
            for cache in [DmaCache::Bypass, DmaCache::Allocate] {
                for way in WAYS {
                    let rack = SimulatedRack::adversarial(2, 8192, seed);
                    assert!(arrives(&rack, cache, way), "seed {seed}, {cache:?}");
                }
            }
        }
    }

    #[test]
    fn a_layered_job_that_is_asked_to_fail_fails_half_done() {
        let rack = SimulatedRack::sticky(1, 8192);
        let dma = engine(&rack, 0, DmaCache::Bypass);
        store_by_layers(&dma, &[9; BYTES]).unwrap();
        dma.fail_after(0);
        assert!(matches!(store_by_layers(&dma, &[8; BYTES]), Err(DmaError::Device { .. })));
        let found = rack.device_bytes(payload());
        assert!(found.contains(&8) && found.contains(&9), "some bytes are new, some old");
        dma.fail_after(0);
        let mut loaded = [7; BYTES];
        assert!(matches!(load_by_layers(&dma, &mut loaded), Err(DmaError::Device { .. })));
        assert!(loaded.contains(&8) && loaded.contains(&7), "some bytes were loaded");
    }

    #[test]
    fn the_job_asked_for_fails_half_done() {
        let rack = SimulatedRack::sticky(1, 8192);
        let dma = engine(&rack, 0, DmaCache::Bypass);
        let bytes = vec![9; BYTES];
        dma.fail_after(1);
        assert!(store(&dma, &bytes).is_ok());
        let failed = store(&dma, &vec![8; bytes.len()]).unwrap_err();
        assert!(matches!(failed, DmaError::Device { .. }), "{failed}");
        let found = rack.device_bytes(payload());
        assert!(found.contains(&8) && found.contains(&9), "some bytes are new, some old");
        let mut loaded = bytes.clone();
        assert_eq!(load(&dma, &mut loaded), Ok(Checksum::of(&[&loaded])));
        dma.fail_after(0);
        assert!(load(&dma, &mut loaded).is_err());
    }

    #[test]
    fn refused_jobs_move_nothing_and_stop_nobody() {
        let rack = SimulatedRack::sticky(1, 8192);
        let dma = engine(&rack, 0, DmaCache::Allocate);
        let outside = Extent::new(8192, 64).unwrap();
        let bytes = [7; 64];
        let inside = Extent::new(64, 64).unwrap();
        let jobs = [
            StoreJob { payload: outside, parts: &[&bytes[..]] },
            StoreJob { payload: inside, parts: &[&bytes, &bytes] },
            StoreJob { payload: payload().part(0, 64).unwrap(), parts: &[&bytes] },
        ];
        let results = dma.store(&jobs);
        assert!(matches!(results[0], Err(DmaError::OutOfRange { .. })));
        assert!(matches!(results[1], Err(DmaError::LengthMismatch { parts_bytes: 128, .. })));
        assert_eq!(results[2], Ok(Checksum::of(&[&bytes])));
        assert_eq!(rack.device_bytes(inside), [0; 64]);
    }
}
