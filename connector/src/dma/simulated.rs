//! A DMA engine of a simulated host, with every step of M9 a place of its own.

use std::sync::{Mutex, PoisonError};

use cxl_shm::fabric::Fabric;
use cxl_shm::fabric::simulated::{DmaCache, SimulatedHost};
use cxl_shm::units::{Extent, LineRange};

use super::{Checksum, DmaEngine, DmaError, LoadJob, StoreJob};

/// The engine of a simulated host: bytes move as `cache` says, the flushes are this engine's, and
/// suppressing one of them is a mutation that some schedule has to notice.
///
/// # Example
/// ```
/// use connector::dma::{DmaEngine, LoadJob, SimulatedDma, StoreJob};
/// use cxl_shm::fabric::simulated::{DmaCache, SimulatedRack};
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
        let stored = || {
            let done = jobs.iter().zip(&results).filter(|(_, result)| result.is_ok());
            done.map(|(job, _)| LineRange::covering(job.payload))
        };
        // The engine may have left the payload in this host's caches (M9), and a fence need not
        // wait for the device (M2).
        for lines in stored() {
            self.host.write_back(lines);
        }
        self.host.fence();
        for lines in stored() {
            self.host.read_back(lines);
        }
        results
    }

    fn load(&self, jobs: &mut [LoadJob<&mut [u8]>]) -> Vec<Result<Checksum, DmaError>> {
        let checked: Vec<_> = jobs.iter().map(|job| job.check(self.host.bytes())).collect();
        // The engine may read through this host's caches (M9): drop what they hold.
        for payload in checked.iter().flatten() {
            self.host.invalidate(LineRange::covering(*payload));
        }
        self.host.fence();
        let each = checked.into_iter().zip(jobs);
        each.map(|(checked, job)| checked.and_then(|at| self.load_one(at, job))).collect()
    }
}

#[cfg(test)]
mod tests {
    use cxl_shm::fabric::simulated::SimulatedRack;
    use cxl_shm::units::LineOffset;

    use super::*;

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

    /// A payload is stored over an older one that the reader still has in its caches. Says whether
    /// the reader gets the new one.
    fn arrives(rack: &SimulatedRack, cache: DmaCache) -> bool {
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
        let caches = [DmaCache::Bypass, DmaCache::Allocate];
        let racks = caches.map(|cache| {
            let rack = SimulatedRack::sticky(2, 8192);
            assert!(arrives(&rack, cache), "{cache:?}");
            rack
        });
        let sites = racks[1].sites();
        assert_eq!(sites.len(), 5, "{sites:?}");
        assert_eq!(racks[0].sites(), sites);
        for site in sites {
            let noticed = caches.iter().any(|cache| {
                let rack = SimulatedRack::sticky(2, 8192);
                rack.suppress(site);
                !arrives(&rack, *cache)
            });
            assert!(noticed, "nothing went wrong without {site}");
        }
    }

    #[test]
    fn busy_caches_and_reordering_engines_do_no_harm() {
        for seed in 0..200 {
            for cache in [DmaCache::Bypass, DmaCache::Allocate] {
                let rack = SimulatedRack::adversarial(2, 8192, seed);
                assert!(arrives(&rack, cache), "seed {seed}, {cache:?}");
            }
        }
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
