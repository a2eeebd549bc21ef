//! The image of a test's disk, as a back opens it, with a handle for each queue. All handles lead
//! to one model.
//!
//! ```text
//!   BackVbd --Image--> SharedDisk<M> --Disk--> Way, lane 0 ---> M::submit, start, complete, wait; M::end when it is dropped
//!                                    '-Disk--> Way, lane 1 ---'
//! ```
//! A back's process ends in the middle of a call by [`perhaps_die`]: the model is there afterwards,
//! for the next process.

use pregrant::blk::disk::{Disk, DiskFigures, Done, Image, Io, OpenError, Opening};
use pregrant::error::PlatformError;
use std::sync::{Arc, Mutex, MutexGuard};

pub trait Model: Send + 'static {
    fn open(&mut self, how: &Opening) -> Result<DiskFigures, OpenError>;
    fn identity(&self) -> Option<String> {
        None
    }
    fn sectors(&mut self) -> Option<u64> {
        None
    }
    fn close(&mut self) {}
    /// Creates a handle (a lane) for one queue, and returns its number.
    fn lane(&mut self) -> usize;
    fn submit(&mut self, lane: usize, io: Io);
    fn start(&mut self, lane: usize);
    fn complete(&mut self, lane: usize, done: &mut Vec<Done>);
    fn wait(&mut self, lane: usize) -> bool;
    fn end(&mut self, lane: usize);
}

/// The model of a disk, which the image and all of its handles share.
pub struct SharedDisk<M>(Arc<Mutex<M>>);

impl<M> Clone for SharedDisk<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> SharedDisk<M> {
    pub fn of(model: M) -> Self {
        Self(Arc::new(Mutex::new(model)))
    }

    pub fn lock(&self) -> MutexGuard<'_, M> {
        self.0.lock().unwrap_or_else(|dead| dead.into_inner())
    }
}

/// The payload of the panic by which a simulated back's process ends.
pub struct Died;

/// Counts `dies_in` down by one, and ends the simulated process when it reaches 0: by a panic
/// without the panic hook, so that nothing is printed.
pub fn perhaps_die(dies_in: &mut Option<u32>) {
    *dies_in = dies_in.and_then(|n| n.checked_sub(1));
    if *dies_in == Some(0) {
        *dies_in = None;
        std::panic::resume_unwind(Box::new(Died));
    }
}

impl<M: Model> Image for SharedDisk<M> {
    fn open(&mut self, how: &Opening) -> Result<DiskFigures, OpenError> {
        self.lock().open(how)
    }
    fn identity(&self) -> Option<String> {
        self.lock().identity()
    }
    fn sectors(&mut self) -> Option<u64> {
        self.lock().sectors()
    }
    fn close(&mut self) {
        self.lock().close();
    }
    fn queue(&mut self) -> Result<Box<dyn Disk>, PlatformError> {
        Ok(Box::new(Way { lane: self.lock().lane(), disk: self.clone() }))
    }
}

struct Way<M: Model> {
    disk: SharedDisk<M>,
    lane: usize,
}

impl<M: Model> Disk for Way<M> {
    fn submit(&mut self, io: Io) {
        self.disk.lock().submit(self.lane, io);
    }
    fn start(&mut self) {
        self.disk.lock().start(self.lane);
    }
    fn complete(&mut self, done: &mut Vec<Done>) {
        self.disk.lock().complete(self.lane, done);
    }
    fn wait(&mut self) -> bool {
        self.disk.lock().wait(self.lane)
    }
}

impl<M: Model> Drop for Way<M> {
    fn drop(&mut self) {
        self.disk.lock().end(self.lane);
    }
}
