//! Runs one guest of `bench blk`: its domain, its disk, and the thread that uses the disk.

use super::disks_command::{Buffers, DiskSetup, HANDLE, Load, Rested};
use super::load::{Asked, Contents};
use crate::process::Result;
use crate::process::report::Latencies;
use hdrhistogram::Histogram;
use pregrant::DomId;
use pregrant::blk::disk::{IoError, SECTOR_BYTES};
use pregrant::blk::front::{Ask, FrontConfig, FrontVbd, NotAsked, OwnAsk};
use pregrant::platform::{Clock, GrantPool, Platform};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{Abi, SEGMENTS_MAX};
use pregrant::wire::ring::ring_size;
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::{Class, Device};
use pregrant::xenstore::Client;
use pregrant::{PAGE_SIZE, PeerFault};
use pregrant_host::MonotonicClock;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::wait::Waiter;
use pregrant_host::wake::WakeOn;
use pregrant_loopback::Loopback;
use std::error::Error;
use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest wait for a handshake, or for answers.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of checks for answers that wait until the back stops using pages.
const RECHECK: Duration = Duration::from_millis(1);
/// Length in bytes of the requests that first write the whole disk, and later read it.
const FIRST_BYTES: usize = 64 * 1024;

/// State that the process's main thread and all guests share.
#[derive(Default)]
pub struct Hall {
    pub running: AtomicBool,
    pub keeps_times: AtomicBool,
}

/// The counts of a guest that the main thread reads.
#[derive(Default)]
pub struct Count {
    /// Number of answered requests.
    pub requests: AtomicU64,
}

/// The guest's driver, with the parts that it needs to sleep.
struct Driver {
    platform: Loopback,
    device: Device,
    vbd: FrontVbd<Loopback>,
}

impl Driver {
    fn failed(&self, what: impl Display) -> Box<dyn Error> {
        format!("{}: {what}", self.device.id()).into()
    }

    /// Sends one request on the first queue.
    fn ask(&mut self, ask: &Ask<'_>) -> Result<()> {
        let Self { platform, vbd, .. } = self;
        vbd.submit(platform, 0, ask, 0).map_err(|e| self.failed(not_asked(&e)))?;
        self.vbd.publish(&self.platform, 0);
        Ok(())
    }

    /// Called before sleeping: requests an event for the next answers. Returns true if there are
    /// answers already.
    fn arm(&mut self) -> std::result::Result<bool, PeerFault> {
        self.vbd.arm(&self.platform)
    }
}

pub struct DiskGuest {
    driver: Driver,
    xs: Client<UnixTransport>,
    contents: Contents,
    /// A copy in private memory of the bytes that a request read.
    taken: Vec<u8>,
    /// Distance in bytes between the buffers of two requests, if buffers are the guest's own.
    own: Option<usize>,
    waiter: Waiter,
}

#[derive(Clone, Copy, Default)]
struct Place {
    asked: Asked,
    at_ns: u64,
}

impl DiskGuest {
    /// Attaches to a domain, connects its disk, and writes the whole disk.
    pub fn take(broker: &Path, front: DomId, setup: &DiskSetup) -> Result<Self> {
        let (platform, mut xs) = crate::process::attach(broker, front)?;
        let device = Device::front(&mut xs, Class::VBD, HANDLE)?;
        device.watch_peer(&mut xs)?;
        let most = setup.size.max(FIRST_BYTES);
        let slots = ring_size(PAGE_SIZE, Abi::X86_64.slot_bytes());
        let config = FrontConfig {
            queues: setup.queues,
            ring_order: setup.depth.div_ceil(slots * setup.queues).next_power_of_two().ilog2(),
            persistent: setup.persistent,
            max_segments: most.div_ceil(PAGE_SIZE).max(SEGMENTS_MAX) as u32,
            pages: setup.pages.div_ceil(setup.queues as usize).max(2 * FIRST_BYTES / PAGE_SIZE),
            ..FrontConfig::default()
        };
        let vbd = FrontVbd::new(device.peer_domid(), config, false);
        let contents = Contents::new(front.0.into(), 0, most);
        let driver = Driver { platform, device, vbd };
        let (taken, own, waiter) = (vec![0; most], None, Waiter::default());
        let mut disk_guest = Self { driver, xs, contents, taken, own, waiter };
        disk_guest.connect(setup)?;
        disk_guest.write_all()?;
        if setup.buffers == Buffers::Own {
            disk_guest.own_buffers(setup)?;
        }
        Ok(disk_guest)
    }

    /// Gives the front a filled buffer for each slot.
    fn own_buffers(&mut self, setup: &DiskSetup) -> Result<()> {
        let each = setup.size.next_multiple_of(PAGE_SIZE);
        let grants = self.driver.platform.grants();
        let table = grants.per_frame().ok_or("the platform grants no single pages")?;
        let memory = table.pages(setup.depth as usize * each / PAGE_SIZE)?;
        for place in 0..setup.depth as usize {
            let copied = memory.copy_in(place * each, &self.contents.filling()[..setup.size]);
            debug_assert!(copied, "a place has a buffer");
        }
        self.driver.vbd.use_memory(Some(memory));
        self.own = Some(each);
        Ok(())
    }

    fn connect(&mut self, setup: &DiskSetup) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !self.driver.vbd.is_live() {
            self.control()?;
            if Instant::now() > until {
                let own = self.driver.vbd.state();
                let what =
                    format_args!("not connected after {PATIENCE:?}: we are {own:?}; the back's log says why");
                return Err(self.driver.failed(what));
            }
            self.xs.next_event(Some(Duration::from_millis(5)))?;
        }
        let (has, persists) = (self.driver.vbd.nr_queues(), self.driver.vbd.persists());
        let DiskSetup { queues, persistent, .. } = *setup;
        if (has, persists) != (queues as usize, persistent) {
            return Err(self.driver.failed(format_args!(
                "{queues} queue(s), persistent: {persistent} were asked for, and {has}, {persists} given"
            )));
        }
        let sectors = self.driver.vbd.figures().map_or(0, |figures| figures.sectors);
        self.contents = Contents::new(self.driver.device.id().front.0.into(), sectors, self.taken.len());
        Ok(())
    }

    fn control(&mut self) -> Result<()> {
        let mut bus = StoreBus { device: &self.driver.device, xs: &mut self.xs };
        let stepped = self.driver.vbd.step(&self.driver.platform, &mut bus);
        stepped.map(drop).map_err(|e| self.driver.failed(e))
    }

    /// Writes the whole disk once, one request after the other.
    fn write_all(&mut self) -> Result<()> {
        let sectors = self.contents.sectors();
        for sector in (0..sectors).step_by(FIRST_BYTES / SECTOR_BYTES) {
            let len = ((sectors - sector) as usize * SECTOR_BYTES).min(FIRST_BYTES);
            let ask = Ask::Write { sector, bytes: self.contents.write(sector, len) };
            self.driver.ask(&ask)?;
            if let Err(e) = self.answer(sector)? {
                return Err(self.driver.failed(format_args!("sector {sector} cannot be written: {e}")));
            }
        }
        Ok(())
    }

    /// Reads all of the disk, and checks every byte.
    pub fn verify(&mut self) -> Result<Rested> {
        let (sectors, mut rested) = (self.contents.sectors(), Rested::default());
        for sector in (0..sectors).step_by(FIRST_BYTES / SECTOR_BYTES) {
            let n = (sectors - sector).min((FIRST_BYTES / SECTOR_BYTES) as u64);
            let ask = Ask::Read { sector, sectors: n as u32 };
            self.driver.ask(&ask)?;
            let bytes = n as usize * SECTOR_BYTES;
            match self.answer(sector)? {
                Err(_) => rested.failed += 1,
                Ok(read) if read != bytes => rested.damaged += 1,
                Ok(_) => {
                    let right = self.contents.is_right(sector, &self.taken[..bytes], true);
                    rested.damaged += u64::from(!right);
                    rested.checked += n;
                }
            }
        }
        Ok(rested)
    }

    /// Waits for the one answer that is due; data that was read is put into `taken`.
    fn answer(&mut self, sector: u64) -> Result<std::result::Result<usize, IoError>> {
        let until = Instant::now() + PATIENCE;
        loop {
            let (mut came, taken) = (None, &mut self.taken);
            self.driver.vbd.take(&self.driver.platform, 0, |answer| {
                let read = answer.copy_out(taken);
                came = Some(answer.outcome.map(|()| read));
            })?;
            if let Some(came) = came {
                return Ok(came);
            }
            if Instant::now() > until {
                let what = format_args!("a request to sector {sector} has no answer after {PATIENCE:?}");
                return Err(self.driver.failed(what));
            }
            self.sleep()?;
        }
    }

    pub fn platform(&self) -> &Loopback {
        &self.driver.platform
    }

    /// Sends requests according to the load until it must stop, and waits for all answers.
    pub fn run(&mut self, load: &Load, hall: &Hall, count: &Count) -> Result<Rested> {
        let queues = self.driver.vbd.nr_queues();
        let mut rested = Rested::default();
        let mut times = Histogram::<u64>::new_with_bounds(1, 100_000_000_000, 3)?;
        let (damaged, checked) = (self.contents.damaged, self.contents.checked);
        let missed = self.waiter.missed_wakeups();
        let mut places = vec![Place::default(); load.depth];
        // Reads of this batch that are in the guest's own buffers.
        let mut came = Vec::with_capacity(load.depth);
        let mut free: Vec<Vec<u32>> = vec![Vec::with_capacity(load.depth); queues];
        (0..load.depth as u32).rev().for_each(|place| free[place as usize % queues].push(place));
        let (mut in_flight, mut quiet_since) = (0usize, None);
        loop {
            let running = hall.running.load(Ordering::Relaxed);
            if !running && in_flight == 0 {
                break;
            }
            let mut moved = false;
            for (queue, free) in free.iter_mut().enumerate() {
                let Self { driver: Driver { platform, vbd, .. }, contents, taken, own, .. } = self;
                let keeps_times = hall.keeps_times.load(Ordering::Relaxed);
                let mut now_ns = None;
                let answered = vbd.take(platform, queue, |answer| {
                    let place = &places[answer.tag as usize];
                    if keeps_times {
                        let now_ns = *now_ns.get_or_insert_with(|| MonotonicClock.now_ns());
                        times.saturating_record(now_ns - place.at_ns);
                    }
                    if answer.outcome.is_err() {
                        rested.failed += 1;
                    } else if place.asked.reads && !(load.careless && contents.passes_over()) {
                        if own.is_some() {
                            came.push((answer.tag as usize, answer.len()));
                        } else {
                            let n = answer.copy_out(taken);
                            contents.read(place.asked.sector, &taken[..n]);
                        }
                    }
                    free.push(answer.tag as u32);
                })?;
                if let (Some(each), Some(memory)) = (*own, vbd.memory()) {
                    for (at, len) in came.drain(..) {
                        let get = |from: usize, to: &mut [u8]| {
                            let copied = memory.copy_out(at * each + from, to);
                            debug_assert!(copied, "it was asked for");
                        };
                        contents.read_in_place(places[at].asked.sector, len, get);
                    }
                }
                if answered > 0 {
                    in_flight -= answered;
                    let sum = count.requests.load(Ordering::Relaxed) + answered as u64;
                    count.requests.store(sum, Ordering::Relaxed);
                    moved = true;
                }
                if !running || free.is_empty() {
                    continue;
                }
                let now_ns = MonotonicClock.now_ns();
                while let Some(&at) = free.last() {
                    let asked = contents.next(at as usize, load);
                    let Asked { reads, sector } = asked;
                    let sectors = (load.size / SECTOR_BYTES) as u32;
                    let submitted = if let Some(each) = *own {
                        let begin = at as usize * each;
                        if let (false, Some(memory)) = (reads, vbd.memory()) {
                            let put = |k: usize, head: &[u8]| {
                                let copied = memory.copy_in(begin + k, head);
                                debug_assert!(copied, "a place has a buffer");
                            };
                            contents.write_heads(sector, load.size, put);
                        }
                        let ask = OwnAsk { reads, sector, sectors, at: begin };
                        vbd.submit_own(platform, queue, &ask, at.into())
                    } else if reads {
                        vbd.submit(platform, queue, &Ask::Read { sector, sectors }, at.into())
                    } else {
                        let bytes = contents.write(sector, load.size);
                        vbd.submit(platform, queue, &Ask::Write { sector, bytes }, at.into())
                    };
                    if let Err(e) = submitted {
                        return Err(self.driver.failed(not_asked(&e)));
                    }
                    places[at as usize] = Place { asked, at_ns: now_ns };
                    free.pop();
                    in_flight += 1;
                    moved = true;
                    if load.careless {
                        break;
                    }
                }
                vbd.publish(platform, queue);
            }
            if moved {
                quiet_since = None;
                if load.takes_turns {
                    std::thread::yield_now();
                }
            } else if load.sleeps {
                self.sleep()?;
                let since = *quiet_since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    let what = format_args!("{in_flight} requests have no answer after {PATIENCE:?}");
                    return Err(self.driver.failed(what));
                }
            } else if load.gives_way {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        rested.damaged = self.contents.damaged - damaged;
        rested.checked = self.contents.checked - checked;
        rested.missed_wakeups = self.waiter.missed_wakeups() - missed;
        rested.latency = Latencies::of(&times);
        Ok(rested)
    }

    /// Sleeps until an answer's event, at most a short time. Handles events of xenstore.
    fn sleep(&mut self) -> Result<()> {
        if self.driver.arm()? {
            return Ok(());
        }
        let what = |driver: &Driver| format!("{}: a guest waits for its disk's answers", driver.device.id());
        // A ring that is broken is found to be when its answers are taken.
        let pending = |driver: &mut Driver| driver.arm().unwrap_or(true);
        let waits = (0..self.driver.vbd.nr_queues())
            .any(|i| self.driver.vbd.queue_mut(i).is_some_and(|q| q.waiting() > 0));
        let due = waits.then_some(RECHECK);
        self.waiter.sleep(&mut self.driver, |driver| driver.platform.events(), pending, &what, due);
        if self.xs.has_events() || self.driver.platform.events().woken_by_any() {
            while self.xs.next_event(Some(Duration::ZERO))?.is_some() {}
            self.control()?;
            if !self.driver.vbd.is_live() {
                return Err(self.driver.failed("the back closed the disk; its log says why"));
            }
        }
        Ok(())
    }
}

fn not_asked(e: &NotAsked) -> String {
    format!("a request was not taken: {e:?}")
}
