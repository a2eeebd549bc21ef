//! A disk of a vhost-user-blk server, used as a guest uses ours.
//!
//! ```text
//!   this process, the guests' core                        qemu-storage-daemon, the backend's core
//!   Contents --copy--> memory <---- ring of virtio-blk ----> iothread --io_uring--> FILE
//!            <--copy--         (crate blkio, polled)
//! ```
//! Requests, copies and checks are those of a guest of ours
//! ([`load`](super::load)). Invariant: a place's memory is the server's from its request until its
//! completion; no reference to it is made, and what came is copied before it is checked.
#![expect(unsafe_code, reason = "memory shared with a vhost-user-blk server")]

use super::disks_command::{Load, Rested};
use super::load::{Asked, Contents, Played};
use crate::limit;
use crate::process::Result;
use crate::process::report::Latencies;
use blkio::{Blkio, BlkioStartOutcome, Blkioq, Completion, MemoryRegion, ReqFlags};
use hdrhistogram::Histogram;
use pregrant::PAGE_SIZE;
use pregrant::blk::disk::SECTOR_BYTES;
use pregrant::shm::SharedBytes;
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// The time that the server may need to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time that requests are in flight before they are counted.
const WARM_UP: Duration = Duration::from_millis(20);
/// Length in bytes of the requests that first write the disk.
const FIRST_BYTES: usize = 64 * 1024;
/// The writer's number, which the contents of the sectors name.
const WRITER: u32 = 1;

/// Memory for requests' data that the server has mapped.
struct Memory(MemoryRegion);

// SAFETY: blkio maps `len` bytes, readable and writable, at a page's beginning, and unmaps them
// when its device is dropped: `VhostUserDisk` drops that after this. The server alone writes there
// beside us, and no reference to the bytes is made.
unsafe impl SharedBytes for Memory {
    fn base(&self) -> NonNull<u8> {
        // The kernel maps nothing at 0.
        NonNull::new(self.0.addr as *mut u8).unwrap_or(NonNull::dangling())
    }
    fn len(&self) -> usize {
        self.0.len
    }
}

/// A vhost-user-blk disk with the memory of its requests. The fields are dropped in this order.
pub struct VhostUserDisk {
    queue: Blkioq,
    memory: Memory,
    /// Distance in bytes between the memory of two requests.
    each: usize,
    contents: Contents,
    completions: Vec<MaybeUninit<Completion>>,
    /// A copy in private memory of the bytes that a request read.
    taken: Vec<u8>,
    _device: Blkio,
}

#[derive(Clone, Copy, Default)]
struct Place {
    asked: Asked,
    at: Option<Instant>,
}

impl VhostUserDisk {
    /// Connects, and writes all of the disk, for at most `depth` requests of at most `size` bytes.
    pub fn connect(socket: &Path, depth: usize, size: usize) -> Result<Self> {
        let most = size.max(FIRST_BYTES);
        let mut device = Blkio::new("virtio-blk-vhost-user")?;
        device.set_str("path", socket.to_str().ok_or("a socket's path is not UTF-8")?)?;
        device.connect()?;
        let sectors = device.get_u64("capacity")? / SECTOR_BYTES as u64;
        device.set_i32("num-queues", 0)?;
        device.set_i32("num-poll-queues", 1)?;
        let BlkioStartOutcome { poll_queues, .. } = device.start()?;
        let queue = poll_queues.into_iter().next().ok_or("blkio has made no queue")?;
        let each = size.next_multiple_of(PAGE_SIZE);
        let region = device.alloc_mem_region((depth * each).max(most))?;
        device.map_mem_region(&region)?;
        let mut disk = Self {
            queue,
            memory: Memory(region),
            each,
            contents: Contents::new(WRITER, sectors, most),
            completions: (0..depth).map(|_| MaybeUninit::uninit()).collect(),
            taken: vec![0; most],
            _device: device,
        };
        disk.write_all()?;
        Ok(disk)
    }

    fn write_all(&mut self) -> Result<()> {
        for sector in (0..self.contents.sectors()).step_by(FIRST_BYTES / SECTOR_BYTES) {
            let left = (self.contents.sectors() - sector) as usize * SECTOR_BYTES;
            self.ask(0, 0, Asked { reads: false, sector }, left.min(FIRST_BYTES));
            let (until, mut answers) = (Instant::now() + PATIENCE, Vec::new());
            while answers.is_empty() {
                self.take(&mut answers)?;
                in_time(until)?;
            }
            if answers != [(0, true)] {
                return Err(format!("sector {sector} cannot be written").into());
            }
        }
        Ok(())
    }

    /// Sends one request, whose data is at offset `at` of the memory.
    fn ask(&mut self, place: usize, at: usize, asked: Asked, len: usize) {
        let Asked { reads, sector } = asked;
        let buffer = self.memory.base().as_ptr().wrapping_add(at);
        let start = sector * SECTOR_BYTES as u64;
        if reads {
            self.queue.read(start, buffer, len, place, ReqFlags::empty());
        } else {
            let copied = self.memory.copy_in(at, self.contents.write(sector, len));
            debug_assert!(copied, "a place has memory");
            self.queue.write(start, buffer, len, place, ReqFlags::empty());
        }
    }

    /// Notifies the server of new requests, and collects the completions: for each, its index, and
    /// whether the request succeeded.
    fn take(&mut self, answers: &mut Vec<(usize, bool)>) -> Result<()> {
        let n = self.queue.do_io(&mut self.completions, 0, None, None)?;
        answers.extend(self.completions[..n].iter().map(|completion| {
            // SAFETY: `do_io` says how many it has written, from the first on.
            let completion = unsafe { completion.assume_init_ref() };
            (completion.user_data, completion.ret == 0)
        }));
        Ok(())
    }

    /// Keeps requests in flight for `seconds`, on this core.
    pub fn play(&mut self, load: &Load, core: Option<usize>, seconds: f64) -> Result<Played> {
        let run = || {
            core.map_or(Ok(()), limit::pin).map_err(|e| e.to_string())?;
            self.run(load, Duration::from_secs_f64(seconds)).map_err(|e| e.to_string())
        };
        let played = std::thread::scope(|scope| scope.spawn(run).join());
        Ok(limit::joined(played)?)
    }

    fn run(&mut self, load: &Load, counted: Duration) -> Result<Played> {
        let mut times = Histogram::<u64>::new_with_bounds(1, 100_000_000_000, 3)?;
        let (damaged, checked) = (self.contents.damaged, self.contents.checked);
        let mut places = vec![Place::default(); load.depth];
        let mut free: Vec<usize> = (0..load.depth).rev().collect();
        let mut answers = Vec::with_capacity(load.depth);
        let (mut requests, mut failed) = (0, 0);
        let mut quiet_until = Instant::now() + PATIENCE;
        let begin = Instant::now() + WARM_UP;
        let (mut began, mut ended) = (None, None);
        loop {
            let now = Instant::now();
            if began.is_none() && now >= begin {
                began = Some((now, crate::cpu_time::of_this_thread()));
                requests = 0;
            }
            if let (Some((since, cpu_ns)), None) = (began, ended) {
                let past = now - since;
                if past >= counted {
                    let cpu_ns = crate::cpu_time::of_this_thread() - cpu_ns;
                    ended = Some((requests, past.as_secs_f64(), cpu_ns));
                }
            }
            if ended.is_none() {
                while let Some(place) = free.pop() {
                    let asked = self.contents.next(place, load);
                    self.ask(place, place * self.each, asked, load.size);
                    places[place] = Place { asked, at: began.is_some().then_some(now) };
                }
            }
            answers.clear();
            self.take(&mut answers)?;
            if answers.is_empty() {
                if free.len() == load.depth {
                    break;
                }
                if now > quiet_until {
                    in_time(quiet_until)?;
                }
                continue;
            }
            let now = Instant::now();
            quiet_until = now + PATIENCE;
            requests += answers.len() as u64;
            for &(place, went_well) in &answers {
                let Place { asked, at } = places[place];
                if let Some(at) = at {
                    times.saturating_record((now - at).as_nanos() as u64);
                }
                if !went_well {
                    failed += 1;
                } else if asked.reads {
                    let bytes = &mut self.taken[..load.size];
                    let copied = self.memory.copy_out(place * self.each, bytes);
                    debug_assert!(copied, "a place has memory");
                    self.contents.read(asked.sector, bytes);
                }
                free.push(place);
            }
        }
        let (requests, seconds, cpu_ns) = ended.ok_or("no time was counted")?;
        let rested = Rested {
            failed,
            damaged: self.contents.damaged - damaged,
            checked: self.contents.checked - checked,
            missed_wakeups: 0,
            latency: Latencies::of(&times),
        };
        Ok(Played { requests, seconds, cpu_ns, rested })
    }
}

/// Returns an error if this time has passed.
fn in_time(until: Instant) -> Result<()> {
    match Instant::now() < until {
        true => Ok(()),
        false => Err(format!("the vhost-user-blk server has not answered in {PATIENCE:?}").into()),
    }
}
