//! A guest's disk: its device in xenstore, its driver, and the loop between the threads that use it
//! and the rings.
//!
//! ```text
//!   threads: SharedDisk::put --> [ Schedule ] --ask--> rings --> the back
//!                                     ^   <-- answers --'
//!                                     '------ lost ---- the back closed: asked again of the next one
//! ```
//! One thread owns this and calls [`round`](BlkFrontend::round), [`control`](BlkFrontend::control)
//! and [`sleep`](BlkFrontend::sleep) in turn, as a [`PollLoop`](crate::drivers::PollLoop) does. A
//! back that is killed and replaced on the live rings is not noticed. One that closes the disk, and
//! opens it again, costs a pause: what it did not answer is asked again, and requests wait
//! meanwhile, as many as [`SharedDisk`] lets in. One that the toolstack wants gone is closed once
//! no one [uses](SharedDisk::begin_use) it, and a flush has covered what was written.
//!
//! What the back may do: offer anything, close at any time, answer nothing, break the protocol. A
//! violation ends the disk, and all that is in hand fails. It comes and goes, and is resized, as
//! often as it likes: that is a few lines in the log.

use super::schedule::Schedule;
use super::shared_disk::{DiskOp, DiskRequest, SharedDisk};
use crate::drivers::front_device::{CLOSING_RETRY, FrontDevice, FrontendError, RETRY};
use crate::drivers::status::short;
use crate::drivers::wait::Waiter;
use crate::line_budget::LineBudget;
use crate::wake::WakeOn;
use log::Level;
use pregrant::blk::disk::IoError;
use pregrant::blk::front::{Answer, Ask, FrontConfig, FrontStep, FrontVbd, NotAsked, NotOffered};
use pregrant::platform::Platform;
use pregrant::xenbus::front::FrontError;
use pregrant::xenbus::{Class, Device, Side, XenbusState};
use pregrant::xenstore::{Client, Transport};
use pregrant::{PeerFault, PlatformError};
use std::fmt::Arguments;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One disk of this domain, as seen from the guest.
pub struct BlkFrontend<P: Platform, T: Transport> {
    end: FrontDevice<P, T>,
    vbd: FrontVbd<P>,
    waiter: Waiter,
    disk: Arc<SharedDisk>,
    schedule: Schedule,
    /// The index of the shared disk's descriptor among those that end a sleep.
    wake: usize,
    new: Vec<DiskRequest>,
    /// The queue that gets the next part of a request.
    next_queue: usize,
    /// Number of parts that were sent a second time, over a new connection.
    repeated: u64,
    /// This end is closing the disk.
    closing: bool,
    /// True if the toolstack removes the disk, and the flush before that was sent.
    last_flush: bool,
    /// The budget of log lines about the disk's backs.
    lines: LineBudget,
    /// The last log line that said that the back has closed the disk.
    closed: Option<String>,
    /// True if the default length of requests is used, because the operator set none.
    default_segments: bool,
}

impl<P: Platform, T: Transport> BlkFrontend<P, T>
where
    P::Events: WakeOn,
{
    /// Finds this domain's disk `handle` and starts to watch its back. If a predecessor left it
    /// connected, it is closed first. The connection to xenstore must wake the platform's events.
    #[inline(never)]
    pub fn new(platform: P, xs: Client<T>, handle: u32, config: FrontConfig) -> Result<Self, FrontendError> {
        let mut end = FrontDevice::new(platform, xs, Class::VBD, handle)?;
        let mut vbd = FrontVbd::new(end.device.peer_domid(), config, true);
        vbd.succeed(&mut end.split().1)?;
        let no_descriptor =
            |e: std::io::Error| PlatformError { op: "make an eventfd", code: e.raw_os_error().unwrap_or(0) };
        let disk = Arc::new(SharedDisk::new().map_err(no_descriptor)?);
        let wake = end.platform.events().also_wake_on(disk.wakes())?;
        let schedule = Schedule::default();
        let (waiter, new) = (Waiter::default(), Vec::new());
        Ok(Self {
            end,
            vbd,
            waiter,
            disk,
            schedule,
            wake,
            new,
            next_queue: 0,
            repeated: 0,
            closing: false,
            last_flush: false,
            lines: LineBudget::new(),
            closed: None,
            default_segments: false,
        })
    }

    /// Records that the operator did not set the number of pages of a request. The log then has no
    /// warning if the back accepts fewer.
    pub fn default_segments(&mut self) {
        self.default_segments = true;
    }

    /// Returns the disk, for threads that read and write it.
    pub fn disk(&self) -> &Arc<SharedDisk> {
        &self.disk
    }

    pub fn platform(&self) -> &P {
        &self.end.platform
    }

    /// Returns the driver's end of the disk.
    pub fn vbd(&self) -> &FrontVbd<P> {
        &self.vbd
    }

    pub fn device(&self) -> &Device {
        &self.end.device
    }

    /// Returns the connection to this domain's xenstore.
    pub fn xs(&mut self) -> &mut Client<T> {
        &mut self.end.xs
    }

    /// Number of parts of requests that were sent again over a new connection.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// True if data was written that no flush has covered.
    pub fn is_dirty(&self) -> bool {
        self.schedule.is_dirty()
    }

    /// Number of waits that ended by timeout although work was pending: the event was lost.
    pub fn missed_wakeups(&self) -> u64 {
        self.waiter.missed_wakeups()
    }

    /// Runs one batch: processes answers, takes new requests, and sends what can be sent. Returns
    /// true if anything moved.
    #[inline(never)]
    pub fn round(&mut self) -> Result<bool, FrontendError> {
        let Self { end, vbd, schedule, disk, new, .. } = self;
        let mut moved = 0;
        for i in 0..vbd.nr_queues() {
            let each = |answer: Answer<'_, P>| {
                schedule.answered(answer.tag, answer.outcome, |to| answer.copy_out(to));
            };
            match vbd.take(&end.platform, i, each) {
                Ok(n) => moved += n,
                Err(fault) => return Err(self.fault(fault)),
            }
        }
        let interrupted = disk.take_interrupted();
        // Until the first connection the disk's sector size is unknown, so requests cannot be cut.
        if disk.figures().is_some() {
            moved += disk.take_new(new);
            new.drain(..).for_each(|request| schedule.add(request));
        }
        if interrupted {
            schedule.drop_interrupted();
        }
        moved += self.ask();
        self.settle();
        Ok(moved > 0)
    }

    /// Sends the parts of requests that can be sent; returns their number.
    fn ask(&mut self) -> usize {
        let Self { end, vbd, schedule, next_queue, .. } = self;
        let queues = vbd.nr_queues();
        if queues == 0 || !schedule.is_ready() {
            return 0;
        }
        let flush = vbd.flush_ask();
        let (mut asked, mut full) = (0, 0);
        while schedule.is_ready() && full < queues {
            let i = *next_queue % queues;
            if flush.is_none() && schedule.flush_is_next() {
                schedule.skip_first();
                asked += 1;
                continue;
            }
            let submitted = schedule.ask_first(vbd.most_bytes(i), |ask, tag| {
                let flush = flush.as_ref().filter(|_| *ask == Ask::Flush);
                vbd.submit(&end.platform, i, flush.unwrap_or(ask), tag)
            });
            *next_queue = (i + 1) % queues;
            match submitted {
                Ok(()) => (asked, full) = (asked + 1, 0),
                // The others' answers make room for it, also where no page could be granted.
                Err(NotAsked::Full | NotAsked::Closed) => full += 1,
                Err(NotAsked::Platform(_)) if schedule.in_flight() > 0 => full += 1,
                Err(NotAsked::Platform(e)) => {
                    // LOG: of the process' own front.
                    log::warn!(
                        "{id}: failing a disk request, cannot grant a page: {e}",
                        id = end.device.id()
                    );
                    schedule.fail_first();
                }
                Err(NotAsked::Length) => schedule.fail_first(),
            }
        }
        for i in 0..queues {
            vbd.publish(&end.platform, i);
        }
        asked
    }

    /// Frees the memory of requests that are done, for use by new requests.
    fn settle(&mut self) {
        let (requests, bytes) = self.schedule.settled();
        if requests > 0 {
            self.disk.settle(requests, bytes);
        }
    }

    /// Handles events of xenstore, a bounded number. Waits at most `wait` for the first one, and
    /// not beyond the time of a planned restart. Returns the state that the disk reached.
    #[inline(never)]
    pub fn control(&mut self, wait: Duration) -> Result<FrontStep, FrontendError> {
        let events = self.end.wait_for_events(wait, self.vbd.begins_at_ns())?;
        let in_use = self.is_in_use()?;
        self.vbd.set_in_use(in_use);
        let leaves = self.vbd.stays() && !in_use;
        // No event arrived, so nothing has changed. A look would cost a round trip to xenstored
        // each time that the loop sleeps.
        if events == 0 && self.vbd.is_live() && !self.vbd.awaits_release() && !leaves {
            return Ok(FrontStep::Waiting);
        }
        let (platform, mut bus) = self.end.split();
        let stepped = self.vbd.step(platform, &mut bus);
        // The former back will answer none of these.
        let lost = self.vbd.take_lost();
        self.repeated += self.schedule.lost(&lost) as u64;
        if !lost.is_empty() {
            self.schedule.drop_interrupted();
        }
        match stepped {
            // A disk that is closed, and that the toolstack removes, writes no key by which this
            // would be noticed.
            Ok(_) if events > 0 && self.vbd.state() == XenbusState::Closed && self.end.is_gone() => {
                self.vbd.removed(&self.end.platform);
                Err(self.end.removed())
            }
            Ok(step) => {
                if let (FrontStep::Live | FrontStep::Resized, Some(figures)) = (step, self.vbd.figures()) {
                    self.disk.set_figures(*figures);
                    self.schedule.set_figures(*figures);
                    self.settle();
                }
                if !self.closing {
                    self.log_step(step, lost.len());
                }
                Ok(step)
            }
            Err(FrontError::Keys(_)) if self.end.is_gone() => {
                self.vbd.removed(&self.end.platform);
                Err(self.end.removed())
            }
            Err(e) => {
                let what = e.to_string();
                // The first error is the one that is reported.
                let _ = self.vbd.close(&mut self.end.split().1, Some(&what));
                Err(match e {
                    FrontError::Keys(e) => e.into(),
                    _ => self.end.not_connected(what),
                })
            }
        }
    }

    /// True if somebody uses the disk, or written data may be lost. If that is the only reason, and
    /// the toolstack removes the disk, it is flushed.
    fn is_in_use(&mut self) -> Result<bool, FrontendError> {
        if self.disk.is_used() {
            self.last_flush = false;
            return Ok(true);
        }
        if self.vbd.stays() && self.schedule.is_empty() && self.schedule.is_dirty() && !self.last_flush {
            self.last_flush = true;
            self.disk.put_at_once(DiskOp::Flush, Box::new(|_| ()));
            self.round()?;
        }
        // A flush that failed is not asked again and again.
        Ok(!self.schedule.is_empty() || self.schedule.is_dirty() && !self.last_flush)
    }

    /// Returns the time until a disk that waits before it restarts needs the next
    /// [`control`](Self::control); None: it does not wait.
    fn begins_in(&self) -> Option<Duration> {
        self.end.until(self.vbd.begins_at_ns())
    }

    /// Arms all queues, then sleeps until there may be work, at most until `due`.
    pub fn sleep(&mut self, due: Option<Duration>) -> Result<(), FrontendError> {
        self.sleep_unless(due, || false)
    }

    /// Sleeps as [`sleep`](Self::sleep) does, but returns at once if `over` is true. If a thread
    /// makes it true and then [wakes](SharedDisk::wake) this one, that is never missed.
    pub fn sleep_unless(
        &mut self,
        due: Option<Duration>,
        over: impl FnOnce() -> bool,
    ) -> Result<(), FrontendError> {
        // The order matters: what changes later is seen by the checks below, or wakes the thread.
        self.disk.check();
        // A round may have done what it stayed for: control, which follows, closes it.
        if over() || self.vbd.stays() && !self.is_in_use()? {
            return Ok(());
        }
        if self.round()? || self.arm()? || self.end.xs.has_events() || due == Some(Duration::ZERO) {
            return Ok(());
        }
        // No event reports that a back has unmapped pages.
        let waits_for_pages =
            self.vbd.is_live() && self.schedule.is_ready() && self.schedule.in_flight() == 0;
        let retry = (self.vbd.awaits_release() || waits_for_pages).then_some(RETRY);
        let due = [due, self.begins_in(), retry].into_iter().flatten().min();
        if !self.disk.about_to_sleep() {
            return Ok(());
        }
        let mut waiter = std::mem::take(&mut self.waiter);
        let what = |front: &Self| {
            format!("{}: the front waits for answers, requests or xenstore", front.end.device.id())
        };
        waiter.sleep(self, |f| f.end.platform.events(), |f| f.vbd.is_pending(), &what, due);
        self.waiter = waiter;
        self.disk.awake(self.end.platform.events().woken_by(self.wake));
        Ok(())
    }

    fn arm(&mut self) -> Result<bool, FrontendError> {
        self.vbd.arm(&self.end.platform).map_err(|fault| self.fault(fault))
    }

    /// Waits at most `most` until the disk is connected. Returns false on timeout.
    #[inline(never)]
    pub fn connect(&mut self, most: Duration) -> Result<bool, FrontendError> {
        let until = Instant::now() + most;
        while !self.vbd.is_live() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.control(left.min(RETRY))?;
        }
        Ok(true)
    }

    /// Finishes all requests, and a flush after them if one is due. No new request may arrive
    /// meanwhile. Returns false if that takes longer than `most`; the requests that remain then
    /// fail.
    #[inline(never)]
    pub fn finish(&mut self, most: Duration) -> Result<bool, FrontendError> {
        let until = Instant::now() + most;
        let flushed = Arc::new(AtomicBool::new(false));
        let report = Arc::clone(&flushed);
        let done = move |outcome: Result<&[u8], _>| report.store(outcome.is_ok(), Ordering::Relaxed);
        self.disk.end();
        self.round()?;
        if self.schedule.is_empty() && !self.schedule.is_dirty() {
            return Ok(true);
        }
        self.disk.end_with(DiskOp::Flush, Box::new(done));
        while self.round()? || !self.schedule.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.sleep(Some(left))?;
            self.control(Duration::ZERO)?;
        }
        self.fail();
        Ok(flushed.load(Ordering::Relaxed))
    }

    /// Fails all requests, also those that arrive later.
    pub fn fail(&mut self) {
        self.disk.end();
        self.schedule.fail_all();
        self.disk.take_new(&mut self.new);
        for request in self.new.drain(..) {
            (request.done)(Err(IoError::Failed));
        }
        self.schedule.settled();
    }

    /// Closes the disk and waits at most `most` until its memory is this domain's again. Returns
    /// false if the back still has some of it mapped.
    #[inline(never)]
    pub fn close(&mut self, most: Duration) -> Result<bool, FrontendError> {
        self.closing = true;
        match self.vbd.close(&mut self.end.split().1, None) {
            Err(_) if self.end.is_gone() => self.vbd.removed(&self.end.platform),
            reported => reported?,
        }
        let until = Instant::now() + most;
        while !self.vbd.is_closed() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            match self.control(left.min(CLOSING_RETRY)) {
                Err(FrontendError::Removed { .. }) => return Ok(true),
                stepped => stepped?,
            };
        }
        Ok(true)
    }

    /// Closes the disk because the back violated the protocol, and writes the reason to xenstore.
    #[cold]
    fn fault(&mut self, fault: PeerFault) -> FrontendError {
        // The fault is the error that is reported.
        let _ = self.vbd.close(&mut self.end.split().1, Some(&fault.to_string()));
        self.end.fault(fault)
    }

    /// Logs the disk's new state.
    fn log_step(&mut self, step: FrontStep, lost: usize) {
        if step == FrontStep::Live {
            for missing in self.vbd.not_offered() {
                let unasked = matches!(missing, NotOffered::Segments { .. }) && self.default_segments;
                let level = if unasked { Level::Info } else { Level::Warn };
                self.lines.say(level, format_args!("{}: {missing}", self.end.device.id()));
            }
        }
        match (step, self.vbd.figures()) {
            (FrontStep::StaysInUse, _) if self.disk.is_used() => self.say(format_args!(
                "the toolstack wants to detach this disk, which is in use: serving it until it is closed"
            )),
            (FrontStep::Live, Some(figures)) => {
                self.closed = None;
                self.say(format_args!(
                    "connected, {} sectors of 512 bytes{}, {} queue(s), {}",
                    figures.sectors,
                    if figures.read_only { ", read-only" } else { "" },
                    self.vbd.nr_queues(),
                    if self.vbd.persists() { "persistent grants" } else { "grants for each request" }
                ))
            }
            (FrontStep::Resized, Some(figures)) => {
                self.say(format_args!("{} sectors of 512 bytes now", figures.sectors));
            }
            (FrontStep::Closed, _) => {
                let why = self.back_says();
                let line = format!(
                    "the back has closed it{why}; {lost} unanswered request(s) wait for the next one, and what comes meanwhile"
                );
                // A back whose image is missing closes the disk each time that it is tried.
                if self.closed.as_ref() != Some(&line) {
                    self.say(format_args!("{line}"));
                    self.closed = Some(line);
                }
            }
            _ => {}
        }
    }

    /// Describes why the disk is not connected, as far as this end knows, and what to do.
    pub fn why_not(&mut self) -> String {
        let FrontDevice { device, xs, .. } = &mut self.end;
        let said = xs.read_if_there(&device.id().error_path(Side::Back)).ok().flatten();
        let said = said.map(|text| short(&String::from_utf8_lossy(&text)));
        let back = device.peer_domid();
        match (device.peer_state(xs), said) {
            (Ok(XenbusState::InitWait | XenbusState::Initialised), said) => {
                let said = said.map(|said| format!(" It said last: {said}")).unwrap_or_default();
                format!(
                    "its back does not connect it: an image that is not there or in use, a drive without a medium, or a script that has \
                     not ended; `pregrant doctor` in {back} says which.{said}"
                )
            }
            (Ok(XenbusState::Closing | XenbusState::Closed), Some(said)) => format!("its back says: {said}"),
            (Ok(XenbusState::Closing | XenbusState::Closed), None) => {
                format!("its back has closed it; the back's log in {back} may say why")
            }
            (Ok(_), _) => format!("no backend serves it: start one in {back}, such as pregrant blkback"),
            (Err(e), _) => e.to_string(),
        }
    }

    /// The back's reason for closing the disk, if it gave one.
    fn back_says(&mut self) -> String {
        let at = self.end.device.id().error_path(Side::Back);
        match self.end.xs.read_if_there(&at) {
            Ok(Some(text)) => format!(": {}", short(&String::from_utf8_lossy(&text))),
            Ok(None) => String::new(),
            // Not to be read, which it is where there is nothing, too.
            Err(_) => "; its log may say why".into(),
        }
    }

    /// Logs a line that the back causes: a few of them, and then only their number.
    fn say(&self, text: Arguments<'_>) {
        self.lines.say(Level::Info, format_args!("{}: {text}", self.end.device.id()));
    }
}
