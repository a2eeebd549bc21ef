//! A guest with a disk, in a thread of the test, and the programs that use the disk.

use crate::BYTES;
use crate::world::{GUEST, Image, VBD, World, client};
use pregrant::blk::disk::IoError;
use pregrant::blk::front::FrontConfig;
use pregrant::platform::Platform;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::blk::front::shared_disk::DiskOp;
use pregrant_host::drivers::{BlkFrontend, FrontendError, SharedDisk, wait};
use pregrant_host::wake::WakeOn;
use pregrant_loopback::Loopback;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// A limit against hangs only.
const GUARD: Duration = Duration::from_secs(180);

const CLOSE: u8 = 1;
const DIE: u8 = 2;

pub struct Guest {
    disk: Arc<SharedDisk>,
    over: Arc<AtomicU8>,
    dirty: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Guest {
    pub fn start(world: &World, config: FrontConfig) -> Self {
        let platform = world.broker.attach(GUEST).unwrap();
        let (report, reported) = mpsc::channel();
        let over = Arc::new(AtomicU8::new(0));
        let orders = Arc::clone(&over);
        let dirty = Arc::new(AtomicBool::new(false));
        let is_dirty = Arc::clone(&dirty);
        let thread = std::thread::spawn(move || {
            let mut front = connected(platform, config);
            report.send(Arc::clone(front.disk())).unwrap();
            while orders.load(Ordering::Acquire) == 0 {
                if !front.round().unwrap() {
                    match front.control(Duration::ZERO) {
                        Err(FrontendError::Removed { .. }) => return front.repeated(),
                        came_to => drop(came_to.unwrap()),
                    }
                    front.sleep(Some(Duration::from_millis(50))).unwrap();
                }
                is_dirty.store(front.is_dirty(), Ordering::Release);
            }
            if orders.load(Ordering::Acquire) == CLOSE {
                assert!(front.close(GUARD).unwrap());
            }
            front.repeated()
        });
        Self { disk: reported.recv().unwrap(), over, dirty, thread }
    }

    pub fn disk(&self) -> &Arc<SharedDisk> {
        &self.disk
    }

    /// Closes the disk. Returns how many requests a closed back made it ask again.
    pub fn close(self) -> u64 {
        self.end(CLOSE)
    }

    /// Ends without closing anything, like a process that is killed. Returns the same as `end`.
    pub fn die(self) -> u64 {
        self.end(DIE)
    }

    /// Whether something was written that no flush has covered.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Waits until the guest has ended because the toolstack removed its disk.
    pub fn until_removed(self) {
        self.thread.join().unwrap();
    }

    fn end(self, how: u8) -> u64 {
        self.over.store(how, Ordering::Release);
        self.disk.wake();
        self.thread.join().unwrap()
    }
}

fn connected(platform: Loopback, config: FrontConfig) -> BlkFrontend<Loopback, UnixTransport> {
    let xs = client(&platform);
    platform.events().also_wake_on(xs.transport().as_fd()).unwrap();
    let mut front = BlkFrontend::new(platform, xs, VBD, config).unwrap();
    assert!(front.connect(GUARD).unwrap());
    front
}

/// A thread sets a flag that ends the loop, and wakes the loop, just before or after the loop
/// checks the flag. A loop that misses it would sleep forever.
pub fn the_end_of_the_loop_is_not_slept_over() {
    let image = Image::new(BYTES);
    let world = World::new(&image.0);
    let back = world.back("uring", "persistent", None);
    let mut front = connected(world.broker.attach(GUEST).unwrap(), FrontConfig::default());
    wait::lift_bounds();
    let disk = Arc::clone(front.disk());
    for _ in 0..3 {
        disk.wake();
        front.sleep_unless(None, || true).unwrap();
        let just_after = || {
            disk.wake();
            false
        };
        front.sleep_unless(None, just_after).unwrap();
    }
    drop(front);
    world.end(back);
}

/// Executes one operation, and waits for it.
pub fn ask(disk: &SharedDisk, op: DiskOp) -> Result<Vec<u8>, IoError> {
    let (report, reported) = mpsc::channel();
    disk.put(op, Box::new(move |outcome| drop(report.send(outcome.map(<[u8]>::to_vec)))));
    reported.recv().expect("each request is done once")
}

/// Writes and reads at odd places, of odd lengths, from `at` to the end of the model, which it
/// updates; flushes at times.
pub fn hammer(disk: &SharedDisk, at: u64, model: &mut [u8], ops: u32) {
    let mut random = at | 1;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) as usize % below
    };
    for op in 0..ops {
        let len = 512 * (1 + if next(4) == 0 { next(128) } else { next(8) });
        let begin = 512 * next((model.len() - len) / 512);
        let place = begin..begin + len;
        match next(16) {
            0 => drop(ask(disk, DiskOp::Flush).unwrap()),
            1..9 => {
                let bytes: Vec<u8> = (0..len).map(|k| (op as usize + k / 512 * 3 + k) as u8).collect();
                ask(disk, DiskOp::Write { at: at + begin as u64, bytes: bytes.clone() }).unwrap();
                model[place].copy_from_slice(&bytes);
            }
            _ => {
                let bytes = ask(disk, DiskOp::Read { at: at + begin as u64, len }).unwrap();
                assert!(bytes == model[place], "{len} bytes at {at} + {begin} are not what was written");
            }
        }
    }
}
