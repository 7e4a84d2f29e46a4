//! Redis over a Unix socket, batches as pipelines.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use redis::{Client, Connection, pipe};

use super::Store;

/// One connection to a server on this machine.
pub(crate) struct RedisStore {
    connection: Connection,
}

impl RedisStore {
    /// Connects to the server whose socket is in the folder.
    pub(crate) fn connect(place: &Path) -> Result<Self> {
        let socket = place.join("redis.sock");
        let client = Client::open(format!("unix://{}", socket.display()))?;
        let connection = client.get_connection().context("cannot connect to the Redis server")?;
        Ok(Self { connection })
    }
}

impl Store for RedisStore {
    fn put(&mut self, numbers: &[u64], blocks: &mut [&mut [u8]]) -> Result<()> {
        let mut pipeline = pipe();
        for (number, block) in numbers.iter().zip(blocks) {
            pipeline.cmd("SET").arg(*number).arg(&**block).ignore();
        }
        Ok(pipeline.exec(&mut self.connection)?)
    }

    fn get(&mut self, numbers: &[u64], buffers: &mut [&mut [u8]]) -> Result<()> {
        let mut pipeline = pipe();
        for number in numbers {
            pipeline.cmd("GET").arg(*number);
        }
        let blocks: Vec<Vec<u8>> = pipeline.query(&mut self.connection)?;
        for (block, buffer) in blocks.iter().zip(buffers) {
            ensure!(block.len() == buffer.len(), "a block is missing");
            buffer.copy_from_slice(block);
        }
        Ok(())
    }

    fn lookup(&mut self, numbers: &[u64]) -> Result<Option<usize>> {
        let mut pipeline = pipe();
        for number in numbers {
            pipeline.cmd("EXISTS").arg(*number);
        }
        let there: Vec<bool> = pipeline.query(&mut self.connection)?;
        Ok(Some(there.iter().take_while(|there| **there).count()))
    }

    fn reset(&mut self) -> Result<()> {
        Ok(redis::cmd("FLUSHALL").arg("SYNC").exec(&mut self.connection)?)
    }
}
