//! A guest's vif: its device in xenstore and its driver.
//!
//! A front that reconnects comes back after a real close; frames that were on the rings then are
//! lost.
//!
//! The guest's own program calls [`Frontend::control`] when xenstore has something to say, and
//! sends and receives in between. What the back may do: offer anything, close at any time; the
//! guest gets that as a state or an error.

use crate::drivers::front_device::{CLOSING_RETRY, FrontDevice, FrontendError, RETRY};
use crate::drivers::net::rx_coalescing::{RX_DELAY, RxCoalescing};
use crate::drivers::net::silent_back::{self, SilentBack, Traffic};
use crate::drivers::overdue::News;
use crate::drivers::wait::Waiter;
use crate::line_budget::LineBudget;
use crate::wake::WakeOn;
use log::Level;
use pregrant::net::features::ActiveLists;
use pregrant::net::front::{
    Diverted, FrontConfig, FrontQueue, FrontStep, FrontVif, HookAction, HookFrame, Lent, NotOffered,
    UnknownToken,
};
use pregrant::net::headers::MacAddr;
use pregrant::net::mtu::Mtu;
use pregrant::net::path::PathName;
use pregrant::net::path::staging::list::DataLen;
use pregrant::platform::Platform;
use pregrant::port::{Arena, Burst, FramePort, Token};
use pregrant::xenbus::front::FrontError;
use pregrant::xenbus::{Class, Device, DeviceError, KeyError, XenbusState};
use pregrant::xenstore::{Client, Transport};
use pregrant::{PeerFault, PlatformError};
use std::time::{Duration, Instant};

/// The time that a new connection waits for the back to announce which pages it keeps mapped.
const ANNOUNCE_PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which the back's answers are checked for.
const ANNOUNCE_POLL: Duration = Duration::from_millis(1);

/// Mask of the source address in bytes 4 to 12 of a frame, read as one word: the last six of these
/// eight bytes.
const SOURCE: u64 = u64::from_ne_bytes([0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);

/// True if the frame's source address is not the vif's. A frame shorter than an Ethernet header
/// does not count; a back counts it as a bad frame. Checked for each frame, so it is one load and
/// one comparison.
#[inline(always)]
fn has_other_source(frame: &[u8], MacAddr([a, b, c, d, e, f]): MacAddr) -> bool {
    let own = u64::from_ne_bytes([0, 0, a, b, c, d, e, f]);
    let there = frame.get(4..).and_then(|rest| rest.first_chunk());
    there.is_some_and(|bytes| u64::from_ne_bytes(*bytes) & SOURCE != own)
}

/// One vif of this domain, as seen from the guest.
pub struct Frontend<P: Platform, T: Transport> {
    end: FrontDevice<P, T>,
    vif: FrontVif<P>,
    waiter: Waiter,
    coalescing: RxCoalescing,
    /// Number of frames that had been received at the last sleep.
    came: u64,
    defaults: Defaults,
    /// The address from the toolstack; None if the key is missing or invalid.
    mac: Option<MacAddr>,
    /// Number of frames that were sent with a source address other than the vif's.
    forged_source: u64,
    /// True while the log line about the paths is not written, because the back has not announced
    /// which pages it keeps mapped.
    is_path_due: bool,
    silent_back: SilentBack,
    /// The budget of log lines about the vif's backs.
    lines: LineBudget,
}

impl<P: Platform, T: Transport> Frontend<P, T> {
    /// Finds this domain's vif `handle` and starts to watch its back. A vif that reconnects first
    /// closes what a predecessor left connected.
    #[inline(never)]
    pub fn new(
        platform: P,
        xs: Client<T>,
        handle: u32,
        config: FrontConfig,
        reconnect: bool,
    ) -> Result<Self, FrontendError> {
        let mut end = FrontDevice::new(platform, xs, Class::VIF, handle)?;
        let mut vif = FrontVif::new(end.device.peer_domid(), config, reconnect);
        if reconnect {
            vif.succeed(&mut end.split().1)?;
        }
        let mac = match end.device.get_own(&mut end.xs, "mac") {
            Err(DeviceError::Key(_)) => None,
            mac => mac?.map(MacAddr),
        };
        let (waiter, defaults) = (Waiter::default(), Defaults::default());
        let coalescing = RxCoalescing::default();
        Ok(Self {
            end,
            vif,
            waiter,
            coalescing,
            came: 0,
            defaults,
            mac,
            forged_source: 0,
            is_path_due: false,
            silent_back: SilentBack::default(),
            lines: LineBudget::new(),
        })
    }

    /// Returns the hardware address that the toolstack gave to the vif (its key `mac`), which is
    /// the source of frames that this guest sends. None: the key is missing or invalid.
    pub fn mac(&self) -> Option<MacAddr> {
        self.mac
    }

    /// Returns the largest packet, in bytes without the Ethernet header, that the toolstack
    /// announced (the key `mtu` in this end's directory, or else in the back's). None: it announced
    /// none; 1500 is usual then.
    pub fn mtu(&mut self) -> Result<Option<u32>, FrontendError> {
        let say = |e: &KeyError| {
            // A program may ask at each connection.
            static LINES: LineBudget = LineBudget::new();
            LINES.warn(format_args!("ignoring the MTU in xenstore: {e}"));
        };
        Ok(Mtu::announced_to_front(&self.end.device, &mut self.end.xs, say)?)
    }

    /// Number of frames that [`send`](Self::send) accepted although their source is not the vif's
    /// [`mac`](Self::mac). A back that filters drops such frames without telling the guest:
    /// `pregrant back --port switch` does (`forged_source` in `pregrant top`), unless
    /// `--allow-mac-spoofing` names this guest. Behind a tap they pass, as a guest that bridges
    /// needs.
    pub fn forged_source(&self) -> u64 {
        self.forged_source
    }

    pub fn platform(&self) -> &P {
        &self.end.platform
    }

    /// Returns the driver's end of the vif.
    pub fn vif(&self) -> &FrontVif<P> {
        &self.vif
    }

    /// Returns the driver and its platform, for everything but frames (control ring, multicast
    /// requests).
    pub fn driver(&mut self) -> (&P, &mut FrontVif<P>) {
        (&self.end.platform, &mut self.vif)
    }

    pub fn device(&self) -> &Device {
        &self.end.device
    }

    /// Returns the connection to this domain's xenstore.
    pub fn xs(&mut self) -> &mut Client<T> {
        &mut self.end.xs
    }

    /// Handles events of xenstore, a bounded number. Waits at most `wait` for the first one, and
    /// not beyond the time of a planned restart. Returns the state that the vif reached.
    #[inline(never)]
    pub fn control(&mut self, wait: Duration) -> Result<FrontStep, FrontendError> {
        let events = self.end.wait_for_events(wait, self.vif.begins_at_ns())?;
        if let Err(fault) = self.vif.turn(&self.end.platform) {
            return Err(self.fault(fault));
        }
        if self.is_path_due && self.vif.is_live() && !self.vif.is_announcing() {
            self.log_path();
        }
        self.check_silence(Instant::now());
        // No event arrived, so nothing has changed. A look would cost a round trip to xenstored, on
        // real Xen through another domain, each time that a loop sleeps.
        if events == 0
            && self.vif.is_live()
            && !self.vif.awaits_release()
            && self.begins_in().is_none_or(|left| !left.is_zero())
        {
            return Ok(FrontStep::Waiting);
        }
        let (platform, mut bus) = self.end.split();
        match self.vif.step(platform, &mut bus) {
            Ok(step) => Ok(step),
            // The toolstack removed the vif: the error is no one's fault.
            Err(FrontError::Keys(_)) if self.end.is_gone() => Ok(self.vif.removed(&self.end.platform)),
            Err(e) => {
                let what = e.to_string();
                // The first error is the one that is reported.
                let _ = self.vif.close(&mut self.end.split().1, Some(&what));
                Err(match e {
                    FrontError::Keys(e) => e.into(),
                    _ => self.end.not_connected(what),
                })
            }
        }
    }

    /// Logs that the back answers nothing, at growing intervals, and later that it answers again.
    fn check_silence(&mut self, now: Instant) {
        if !self.silent_back.is_due(now) {
            return;
        }
        let traffic = self.vif.is_live().then(|| self.traffic());
        let id = self.end.device.id();
        match self.silent_back.check(now, traffic) {
            None => {}
            Some(News::Waits(silence)) => self.lines.warn(format_args!(
                "{id}: the backend has answered none of {out} TX request(s) for {s} s, the requests wait for it, or for the next one; check in {back} \
                 that it runs, and that its interface takes frames (pregrant doctor)",
                out = traffic.unwrap_or_default().out,
                s = silence.as_secs(),
                back = self.end.device.peer_domid(),
            )),
            Some(News::Over(silence)) => self.lines.say(
                Level::Info,
                format_args!("{id}: a backend answers again, after {} s", silence.as_secs()),
            ),
        }
    }

    fn traffic(&self) -> Traffic {
        let queues = (0..self.vif.nr_queues()).filter_map(|i| Some((i, self.vif.queue(i)?.stats())));
        queues.fold(Traffic::default(), |all, (i, (tx, rx))| Traffic {
            out: all.out + self.vif.in_flight(i),
            sent: all.sent + tx.frames,
            came: all.came + rx.frames,
        })
    }

    fn waits_for_answers(&self) -> bool {
        (0..self.vif.nr_queues()).any(|i| self.vif.in_flight(i) > 0)
    }

    /// Returns the time until a vif that waits before it restarts needs the next
    /// [`control`](Self::control); None: it does not wait.
    pub fn begins_in(&self) -> Option<Duration> {
        self.end.until(self.vif.begins_at_ns())
    }

    /// Waits at most `most` until frames can travel. Returns false on timeout. After that it waits
    /// for a short time until the back has announced which pages it keeps mapped; frames travel
    /// meanwhile.
    #[inline(never)]
    pub fn connect(&mut self, most: Duration) -> Result<bool, FrontendError> {
        let mut until = Instant::now() + most;
        while !self.vif.is_live() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.control(left.min(RETRY))?;
        }
        until = until.min(Instant::now() + ANNOUNCE_PATIENCE);
        while self.vif.is_announcing() && Instant::now() < until {
            self.control(ANNOUNCE_POLL)?;
        }
        Ok(self.vif.is_live())
    }

    /// Closes the vif and waits at most `most` until its memory is this domain's again. Returns
    /// false if the back still has some of it mapped.
    #[inline(never)]
    pub fn close(&mut self, most: Duration) -> Result<bool, FrontendError> {
        match self.vif.close(&mut self.end.split().1, None) {
            Err(_) if self.end.is_gone() => {
                self.vif.removed(&self.end.platform);
            }
            reported => reported?,
        }
        let until = Instant::now() + most;
        while !self.vif.is_closed() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.control(left.min(CLOSING_RETRY))?;
        }
        Ok(true)
    }

    /// Sends as many frames of `burst` as fit on queue `i`, from the first. Returns how many: none
    /// while the vif is not live.
    #[inline(never)]
    pub fn send(&mut self, i: usize, burst: &Burst<'_>) -> Result<usize, PlatformError> {
        let Some(queue) = self.vif.queue_mut(i) else { return Ok(0) };
        let sent = queue.send(&self.end.platform, burst)?;
        if let Some(mac) = self.mac {
            let sent = Burst { frames: burst.frames.get(..sent).unwrap_or_default(), ..*burst };
            self.forged_source +=
                sent.iter().filter(|(frame, _)| has_other_source(frame, mac)).count() as u64;
        }
        Ok(sent)
    }

    /// Calls a function on queue `i` while the vif is live. If the back broke the protocol, the vif
    /// is closed.
    #[inline(always)]
    fn on_queue<R: Default>(
        &mut self,
        i: usize,
        act: impl FnOnce(&P, &mut FrontQueue<P>) -> Result<R, PeerFault>,
    ) -> Result<R, FrontendError> {
        let Some(queue) = self.vif.queue_mut(i) else { return Ok(R::default()) };
        act(&self.end.platform, queue).map_err(|fault| self.fault(fault))
    }

    /// Processes TX answers of queue `i`, once at least `want` of them are there.
    #[inline(never)]
    pub fn reclaim(&mut self, i: usize, want: u32) -> Result<u32, FrontendError> {
        self.on_queue(i, |p, queue| queue.reclaim(p, want))
    }

    /// Receives frames of queue `i` into `out`, once at least `want` answers are there.
    #[inline(never)]
    pub fn recv(&mut self, i: usize, out: &mut Arena, want: u32) -> Result<usize, FrontendError> {
        self.on_queue(i, |p, queue| queue.recv(p, out, want))
    }

    /// Receives frames of queue `i` by reference; see [`FrontQueue::recv_by_reference`]. They are
    /// given back by [`release`](Self::release).
    #[inline(never)]
    pub fn recv_by_reference(
        &mut self,
        i: usize,
        out: &mut Arena,
        lent: &mut Lent,
        want: u32,
    ) -> Result<usize, FrontendError> {
        lent.clear();
        self.on_queue(i, |p, queue| queue.recv_by_reference(p, out, lent, want))
    }

    /// Passes received frames to `port`; see [`FrontVif::hand_on`].
    #[inline(never)]
    pub fn hand_on(&mut self, came: &mut Arena, lent: &mut Lent, port: &mut dyn FramePort) -> usize {
        self.vif.hand_on(&self.end.platform, came, lent, port)
    }

    /// Asks `hook` what to do with the frames of queue `i`, and does it; see
    /// [`FrontQueue::recv_hooked`].
    #[inline(always)]
    pub fn recv_hooked(
        &mut self,
        i: usize,
        out: &mut Arena,
        diverted: &mut Diverted,
        at: (u32, usize),
        hook: impl FnMut(&mut HookFrame) -> HookAction,
    ) -> Result<usize, FrontendError> {
        diverted.clear();
        self.on_queue(i, |p, queue| queue.recv_hooked(p, out, diverted, at, hook))
    }

    /// Releases held frames by their tokens; see [`FrontVif::release`].
    #[inline(always)]
    pub fn release(&mut self, tokens: impl IntoIterator<Item = Token>) -> Result<(), UnknownToken> {
        self.vif.release(&self.end.platform, tokens)
    }

    /// Called before sleeping: arms all queues for RX, and with `tx_too` also for TX answers.
    /// Returns true if there is work.
    pub fn arm(&mut self, tx_too: bool) -> Result<bool, FrontendError> {
        self.arm_ahead(tx_too, 1)
    }

    fn arm_ahead(&mut self, tx_too: bool, ahead: u32) -> Result<bool, FrontendError> {
        let mut work = match self.vif.final_check_ctrl(&self.end.platform) {
            Ok(work) => work,
            Err(fault) => return Err(self.fault(fault)),
        };
        for i in 0..self.vif.nr_queues() {
            work |= self.on_queue(i, |p, queue| queue.final_check_ahead(p, tx_too, ahead))?;
        }
        Ok(work)
    }

    /// Sets for how many frames a sleep waits from now on; see
    /// [`rx_coalescing`](super::rx_coalescing).
    pub fn set_rx_coalescing(&mut self, coalescing: RxCoalescing) {
        self.coalescing = coalescing;
    }

    /// Number of frames that arrived on all queues of this connection.
    fn frames_that_came(&self) -> u64 {
        let queues = (0..self.vif.nr_queues()).filter_map(|i| self.vif.queue(i));
        queues.map(|queue| queue.stats().1.frames).sum()
    }

    /// Returns the number of answers after which the back must notify a front that sleeps.
    fn ahead(&mut self) -> u32 {
        if self.coalescing == RxCoalescing::Off {
            return 1;
        }
        let came = self.frames_that_came();
        let before = std::mem::replace(&mut self.came, came);
        self.coalescing.ahead(came.saturating_sub(before))
    }

    /// Arms all queues as [`arm`](Self::arm) does, and sleeps until there may be work, at most
    /// until `due`. The connection to xenstore must wake the platform's events.
    #[inline(never)]
    pub fn sleep(&mut self, tx_too: bool, due: Option<Duration>) -> Result<(), FrontendError>
    where
        P::Events: WakeOn,
    {
        let ahead = self.ahead();
        if self.arm_ahead(tx_too, ahead)? || self.end.xs.has_events() || due == Some(Duration::ZERO) {
            return Ok(());
        }
        // No event reports that a back has unmapped pages.
        let retry = self.vif.awaits_release().then_some(RETRY);
        let delay = (ahead > 1).then_some(RX_DELAY);
        let check = self.waits_for_answers().then_some(silent_back::EACH);
        let due = [due, self.begins_in(), retry, delay, check].into_iter().flatten().min();
        let mut waiter = std::mem::take(&mut self.waiter);
        let what = |front: &Self| {
            let (id, answers) = (front.end.device.id(), if tx_too { "answers, " } else { "" });
            format!("{id}: the front waits for {answers}frames or xenstore")
        };
        waiter.sleep(self, |f| f.end.platform.events(), |f| f.vif.is_pending(tx_too), &what, due);
        self.waiter = waiter;
        Ok(())
    }

    /// Number of waits that ended by timeout although work was pending: the event was lost.
    pub fn missed_wakeups(&self) -> u64 {
        self.waiter.missed_wakeups()
    }

    /// Closes the vif because the back violated the protocol, and writes the reason to xenstore.
    #[cold]
    fn fault(&mut self, fault: PeerFault) -> FrontendError {
        // The fault is the error that is reported.
        let _ = self.vif.close(&mut self.end.split().1, Some(&fault.to_string()));
        self.end.fault(fault)
    }

    /// Returns our xenbus state and the back's.
    pub fn states(&mut self) -> Result<(XenbusState, XenbusState), FrontendError> {
        Ok((self.vif.state(), self.end.device.peer_state(&mut self.end.xs)?))
    }

    /// Tells which settings the user did not choose: if the back lacks these, the log has no
    /// warning.
    pub fn set_defaults(&mut self, defaults: Defaults) {
        self.defaults = defaults;
    }

    /// Logs the vif's new state: its peer and path, and requests that failed.
    #[inline(never)]
    pub fn log_state(&mut self) {
        let (id, vif) = (self.end.device.id(), &self.vif);
        // LOG: these are of the process' own front, and no guest's.
        if !vif.is_live() {
            self.is_path_due = false;
            return log::info!("{id}: waits for a backend ({})", id.back);
        }
        // The back has not said yet which pages it keeps mapped: its answers arrive while frames
        // travel.
        self.is_path_due = vif.is_announcing();
        let path = if self.is_path_due {
            "ordinary grants until the back has said which pages it keeps mapped (gref-mapping)".to_string()
        } else {
            self.path_in_words()
        };
        let queues = vif.nr_queues();
        // LOG: as above.
        log::info!("{id}: connected to {}, {path}, {queues} queue(s)", id.back);
        for missing in vif.not_offered() {
            let level = if self.defaults.has(missing) { log::Level::Info } else { log::Level::Warn };
            // LOG: as above; one a connection for each option.
            log::log!(level, "{id}: {missing}; this front goes on with {queues} queue(s), {path}");
        }
        if let Some(e) = vif.shortage() {
            // LOG: as above.
            log::warn!(
                "{id}: fewer resources than requested: {queues} queue(s), {ids} TX requests each, {path}; {e}",
                ids = vif.queue(0).map_or(0, |queue| queue.tx().chain().ids())
            );
        }
    }

    /// Logs the paths, once the back has announced which pages it keeps mapped.
    fn log_path(&mut self) {
        self.is_path_due = false;
        let (id, pages, path) = (self.end.device.id(), self.vif.gref_pages(0), self.path_in_words());
        // LOG: of the process' own front, once a connection.
        if pages > 0 {
            log::info!("{id}: the back keeps the pages mapped that it was asked to: {path}");
        } else {
            // LOG: the same.
            log::warn!(
                "{id}: the backend keeps no page of ours mapped (control message ADD_GREF_MAPPING); frames go by {path}"
            );
        }
    }

    /// Describes the paths by which frames of queue 0 travel; the most used one is first.
    fn path_in_words(&self) -> String {
        let ways: Vec<_> = PathName::ALL.into_iter().filter_map(|path| self.words_of(path)).collect();
        if ways.is_empty() { "ordinary grants".to_string() } else { ways.join("; ") }
    }

    /// Describes a path, if frames of queue 0 travel by it and it is more than ordinary grants.
    fn words_of(&self, path: PathName) -> Option<String> {
        let vif = &self.vif;
        let queue = vif.queue(0)?;
        match path {
            PathName::Staging => match queue.staging_lens() {
                (None, None) => None,
                (Some(tx), Some(rx)) if tx == rx => Some(format!("path staging {}", tx.value())),
                (tx, rx) => {
                    let of =
                        |len: Option<DataLen>| len.map_or("none".to_string(), |len| len.value().to_string());
                    Some(format!("path staging, TX {}, RX {}", of(tx), of(rx)))
                }
            },
            PathName::DataRing => match queue.data_ring() {
                ActiveLists { tx: true, rx: true } => Some("path data-ring".into()),
                ActiveLists { tx: true, rx: false } => Some("path data-ring, TX alone".into()),
                ActiveLists { tx: false, rx: true } => Some("path data-ring, RX alone".into()),
                ActiveLists { tx: false, rx: false } => None,
            },
            PathName::Foreign => vif
                .names_frames()
                .then(|| "path foreign: the back has all of this domain's memory mapped".into()),
            PathName::GuestCopy => {
                queue.borrows().then(|| "path guest-copy: RX from pages that the back lends".into())
            }
            PathName::GrefMapping => {
                let pages = vif.gref_pages(0);
                (pages > 0).then(|| format!("path gref-mapping, {pages} page(s) a queue"))
            }
            PathName::Persistent => vif
                .persists()
                .then(|| "path persistent: pages granted once, which the back keeps mapped".into()),
            PathName::Map | PathName::Copy => None,
        }
    }
}

/// The parts of a front's configuration that are defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Defaults {
    /// Staging, and the length of staging buffers, are defaults.
    pub staging: bool,
    /// The number of queues is a default.
    pub queues: bool,
}

impl Defaults {
    fn has(self, missing: &NotOffered) -> bool {
        match missing {
            NotOffered::DataLen { .. } | NotOffered::Refused(PathName::Staging) => self.staging,
            NotOffered::Queues { .. } => self.queues,
            _ => false,
        }
    }
}
