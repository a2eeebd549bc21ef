//! A process of guests: one with a vif, as its own program would use it; or, by commands of their
//! own, a [crowd](super::crowd), or guests with [disks](super::disks).

use super::consumer::Consumer;
use super::crowd::guests::Crowd;
use super::disks::guests::Guests;
use super::fault::Fault;
use super::mark::{mark, whole_frames};
use super::own_frames::{OwnFrames, equip, written};
use super::process_command::{Case, Dir, ProcessCommand, RING_SLOTS, RxWay};
use super::report::{Came, Latencies, Played, Report, Spent};
use super::{ProcessArgs, Result, next_command, send_report};
use crate::cpu_time;
use hdrhistogram::Histogram;
use pregrant::net::front::{FrontConfig, FrontQueue, Granting, Lent};
use pregrant::net::path::PathName;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::Clock;
use pregrant::port::{Arena, Offload};
use pregrant::{DomId, PAGE_SIZE};
use pregrant_host::MonotonicClock;
use pregrant_host::UnixTransport;
use pregrant_host::drivers::{Frontend, Mode, PollLoop, Rest};
use pregrant_host::ports::checking_sink::{Check, CheckingSink};
use pregrant_host::ports::generator::{Filling, Generator};
use pregrant_host::ports::sequence::{self, Head, Tracker};
use pregrant_loopback::Loopback;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

/// A guest's driver for its vif, with its xenstore connection.
pub type Guest = Frontend<Loopback, UnixTransport>;

/// The time that both ends run before frames are counted.
const WARM_UP: Duration = Duration::from_millis(20);
/// Length of a warm-up in which pages must first be added to a table, and how often it may be
/// repeated.
const WARM_UP_BUFFERS: Duration = Duration::from_millis(150);
const WARM_UPS_MAX: usize = 10;
/// The time after which an echo that has not arrived counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// The longest wait for a handshake.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn play(args: &ProcessArgs) -> Result<()> {
    // The domain lives as long as its first process' attachment.
    let keep = Loopback::attach(&args.broker, DomId(args.domid))?;
    let (mut crowd, mut disks) = (Crowd::default(), Guests::default());
    while let Some(command) = next_command()? {
        let said = match command {
            ProcessCommand::Case(case) => case_of(args, &case).map(|p| Report::Case(Box::new(p))),
            ProcessCommand::Transfer(transfer) => super::transfer::play(args, &transfer),
            ProcessCommand::Annoy { nuisance, size } => super::neighbour::play(args, nuisance, size),
            ProcessCommand::Gather { members, path, data_len, buffers } => {
                let mut each = config(path, data_len, 1);
                each.staging.buffers = buffers;
                crowd.gather(&args.broker, &members, &each)
            }
            // It sends the answer itself, once all rings are full, and continues until the next
            // command.
            ProcessCommand::Send(loads) => match crowd.send(&loads) {
                Ok(()) => continue,
                Err(e) => Err(e),
            },
            ProcessCommand::Rest => crowd.rest(),
            ProcessCommand::Echo { seconds, mode } => crowd.echo(seconds, mode),
            ProcessCommand::Disks(command) => disks.obey(&args.broker, command),
            _ => Err("that is the back's command".into()),
        };
        send_report(&said.unwrap_or_else(|e| Report::Failed(e.to_string())))?;
    }
    drop(keep);
    Ok(())
}

/// Attaches to a domain, and begins with its vif `handle`; wakes on xenstore.
pub fn attach(broker: &Path, domid: u16, handle: u32, config: FrontConfig) -> Result<Guest> {
    let (platform, xs) = super::attach(broker, DomId(domid))?;
    Ok(Frontend::new(platform, xs, handle, config, false)?)
}

/// Creates the error for a vif that did not connect in time.
pub fn not_connected(guest: &mut Guest, patience: Duration) -> Box<dyn Error> {
    let at = guest.device().id();
    match guest.states() {
        Ok((own, back)) => {
            format!("{at}: not connected after {patience:?}: we are {own:?}, the back is {back:?}").into()
        }
        Err(e) => e.into(),
    }
}

/// Waits until a vif is connected.
pub fn connect(guest: &mut Guest) -> Result<()> {
    if guest.connect(PATIENCE)? { Ok(()) } else { Err(not_connected(guest, PATIENCE)) }
}

/// Returns a guest's settings for frames that use this path.
pub fn config(path: PathName, data_len: Option<u32>, queues: u32) -> FrontConfig {
    let len = data_len.and_then(DataLen::new);
    FrontConfig {
        queues,
        staging: Buffers::of(len, len),
        granting: Granting::PerFrame,
        ..FrontConfig::default()
    }
    .asking_for(path)
}

/// Runs the guest's part of one case, from connect to close.
fn case_of(args: &ProcessArgs, case: &Case) -> Result<Played> {
    let mut config = config(case.path, case.data_len, case.queues);
    if let Some(lens) = case.data_lens {
        let [tx, rx] = lens.map(|len| len.and_then(DataLen::new));
        config.staging = Buffers::of(tx, rx);
    }
    config.staging.sent_on = case.rx == RxWay::SendOn;
    config.pages = if case.staging_buffers > RING_SLOTS { case.staging_buffers } else { 0 };
    config.staging.buffers = config.pages;
    let mut guest = attach(&args.broker, args.domid, case.handle, config)?;
    if let Some(buffers) = case.buffers {
        equip(&mut guest, buffers)?;
    }
    connect(&mut guest)?;
    // Longer than a guest waits that can begin without: the path is what is measured.
    let began = Instant::now();
    while guest.vif().is_announcing() && began.elapsed() < PATIENCE {
        guest.control(Duration::from_millis(1))?;
    }
    guest.set_rx_coalescing(case.rx_coalescing);
    let staged = guest.vif().staging_accepted(0);
    let buffers = guest.vif().queue(0).map_or((0, 0), FrontQueue::staging_buffers);
    let fewest = match case.dir {
        Dir::Tx => buffers.0,
        Dir::Rx => buffers.1,
        Dir::Echo => buffers.0.min(buffers.1),
    };
    if staged && fewest < case.staging_buffers {
        return Err(format!(
            "{} staging buffers were asked for, and {buffers:?} are there",
            case.staging_buffers
        )
        .into());
    }
    let pages = guest.vif().queue(0).map_or([0, 0], FrontQueue::pages);
    if config.pages > 0 && !staged && pages[0].min(pages[1]) < config.pages {
        return Err(format!("{} pages were asked for, and {pages:?} are there", config.pages).into());
    }
    if case.data_len.is_some() != staged {
        return Err(format!(
            "staging with data length {:?} was asked for, and {}",
            case.data_len,
            if staged { "given without need" } else { "not accepted: the back's log says why" }
        )
        .into());
    }
    let mut played = match case.dir {
        Dir::Tx => Sender::new(&mut guest, case).run()?,
        Dir::Rx => receive(&mut guest, case)?,
        Dir::Echo => echo(&mut guest, case)?,
    };
    played.platform = guest.platform().describe();
    played.spent.missed_wakeups = guest.missed_wakeups();
    if !guest.close(PATIENCE)? {
        let id = guest.device().id();
        return Err(format!("{id}: the back did not let go of our memory in {PATIENCE:?}").into());
    }
    Ok(played)
}

/// Returns the resources that a guest with a thread of its own has used so far.
pub fn spent(guest: &Guest) -> Spent {
    Spent {
        ops: guest.platform().counters(),
        cpu_ns: cpu_time::of_this_thread(),
        missed_wakeups: guest.missed_wakeups(),
        at_ns: MonotonicClock.now_ns(),
        ..Spent::default()
    }
}

/// Number of bytes of each frame that are read: its headers and number.
const READ_BYTES: usize = 64;

/// The event that a guest waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// The guest waits for received frames.
    Rx,
    /// The guest waits for answers to frames that it sent, and for received frames.
    Answers,
}

/// Waits between rounds according to the mode, and gives up when nothing moves for a long time.
struct Waiter {
    poll_loop: PollLoop,
    gives_way: bool,
    /// The time at which the guest wakes even without an event.
    until: Option<Instant>,
    /// True if the event did not arrive in time.
    late: bool,
    quiet_since: Option<Instant>,
}

impl Waiter {
    fn new(mode: Mode) -> Self {
        Self { poll_loop: PollLoop::new(mode), gives_way: false, until: None, late: false, quiet_since: None }
    }

    /// Decides how to wait. It is called after each round; `moved` is true if anything moved in the
    /// round.
    #[inline]
    fn after(&mut self, guest: &mut Guest, moved: bool, what: For) -> Result<()> {
        if moved {
            self.quiet_since = None;
        }
        let Self { poll_loop, gives_way, until, late, quiet_since } = self;
        poll_loop
            .after(&mut Pause { guest, what, gives_way: *gives_way, until: *until, late, quiet_since }, moved)
    }

    /// Starts to wait for an event that must happen within `most`.
    fn expect(&mut self, most: Duration) {
        (self.until, self.late) = (Some(Instant::now() + most), false);
    }

    /// True if the event did not happen in time, as of the last reading of the clock.
    fn is_late(&self) -> bool {
        self.late
    }
}

/// What a waiter needs to pause between two rounds.
struct Pause<'a> {
    guest: &'a mut Guest,
    what: For,
    gives_way: bool,
    until: Option<Instant>,
    late: &'a mut bool,
    quiet_since: &'a mut Option<Instant>,
}

impl Rest for Pause<'_> {
    type Error = Box<dyn Error>;

    #[inline(always)]
    fn again(&mut self, moved: bool) {
        if self.gives_way && !moved {
            std::thread::yield_now();
        }
    }

    fn sleep(&mut self) -> Result<()> {
        let due = self.until.map_or(PATIENCE, |at| at.saturating_duration_since(Instant::now()));
        Ok(self.guest.sleep(self.what == For::Answers, Some(due.min(PATIENCE)))?)
    }

    fn control(&mut self) -> Result<()> {
        *self.late = self.until.is_some_and(|until| Instant::now() >= until);
        self.guest.control(Duration::ZERO)?;
        if !self.guest.vif().is_live() {
            return Err("the back closed the vif; its log says why".into());
        }
        let since = *self.quiet_since.get_or_insert_with(Instant::now);
        if since.elapsed() > PATIENCE {
            let n: u32 = (0..self.guest.vif().nr_queues()).map(|i| self.guest.vif().in_flight(i)).sum();
            return Err(format!("nothing moved for {PATIENCE:?}; {n} TX requests have no answer").into());
        }
        Ok(())
    }
}

/// Sends one mark, and nothing else, after all earlier frames are answered; returns when the mark
/// is answered, too.
fn send_mark(guest: &mut Guest, mode: Mode) -> Result<()> {
    let mut alone = Arena::new();
    if !alone.push(&mark(), Offload::default()) {
        return Err("no room for a mark".into());
    }
    settle(guest, mode)?;
    let mut waiter = Waiter::new(mode);
    while guest.send(0, &alone.burst())? == 0 {
        let moved = guest.reclaim(0, 1)? > 0;
        waiter.after(guest, moved, For::Answers)?;
    }
    settle(guest, mode)
}

/// Waits until every TX request is answered.
fn settle(guest: &mut Guest, mode: Mode) -> Result<()> {
    let mut waiter = Waiter::new(mode);
    for i in 0..guest.vif().nr_queues() {
        while guest.vif().in_flight(i) > 0 {
            let moved = guest.reclaim(i, 1)? > 0;
            waiter.after(guest, moved, For::Answers)?;
        }
    }
    Ok(())
}

/// Sends numbered frames as fast as the ring accepts them.
struct Sender<'a> {
    guest: &'a mut Guest,
    frames: Vec<(Generator, Arena)>,
    burst: u64,
    /// Number of frames of the untimed first burst, on each queue.
    whole: u64,
    mode: Mode,
    seconds: f64,
    /// Largest number of frames that are sent per second.
    rate: Option<f64>,
    gives_way: bool,
    /// Number of answers to wait for before the ring's cache lines are touched.
    want: u32,
    /// The guest's own buffers for frames of one queue, if it has any.
    own: Option<OwnFrames>,
    /// Number of bytes of a frame that are written to these buffers, after the first burst.
    written: usize,
    written_then: usize,
}

impl<'a> Sender<'a> {
    fn new(guest: &'a mut Guest, case: &Case) -> Self {
        let frames = || (Generator::new(Head::default(), case.size), Arena::new());
        let slots = case.size.div_ceil(4096) as u32;
        let want = if slots > 1 { slots } else { (case.burst as u32 / 2).max(1) };
        Self {
            frames: std::iter::repeat_with(frames).take(guest.vif().nr_queues()).collect(),
            guest,
            burst: case.burst as u64,
            whole: whole_frames(case.size),
            mode: case.mode,
            seconds: case.seconds,
            rate: case.rate,
            gives_way: case.gives_way,
            want,
            own: case.buffers.map(|buffers| OwnFrames::new(buffers, case.size)),
            written: case.size,
            written_then: case.buffers.map_or(0, |buffers| written(buffers.fill, case.size)),
        }
    }

    fn run(mut self) -> Result<Played> {
        send_mark(self.guest, self.mode)?;
        self.send_whole()?;
        send_mark(self.guest, self.mode)?;
        self.written = self.written_then;
        match self.own.is_some() {
            true => self.fill_table()?,
            false => self.send_for(WARM_UP)?,
        }
        send_mark(self.guest, self.mode)?;
        if let Some(own) = &mut self.own {
            own.begin(self.guest);
        }
        let (before, began) = (self.sent(), spent(self.guest));
        self.send_for(Duration::from_secs_f64(self.seconds))?;
        settle(self.guest, self.mode)?;
        let played = Played {
            frames: self.sent() - before,
            spent: spent(self.guest).since(&began),
            sent: self.sent(),
            checked: self.whole * self.frames.len() as u64,
            cache: self.own.as_ref().map(|own| own.played(self.guest)),
            ..Played::default()
        };
        send_mark(self.guest, self.mode)?;
        Ok(played)
    }

    /// Sends until the back's table has all buffers, or it is clear that they do not fit.
    fn fill_table(&mut self) -> Result<()> {
        for _ in 0..WARM_UPS_MAX {
            if let Some(own) = &mut self.own {
                own.begin(self.guest);
            }
            self.send_for(WARM_UP_BUFFERS)?;
            let played = self.own.as_ref().map(|own| own.played(self.guest));
            if played.is_none_or(|played| played.copying || played.copied == 0) {
                break;
            }
        }
        Ok(())
    }

    fn sent(&self) -> u64 {
        self.frames.iter().map(|(generator, _)| generator.made()).sum()
    }

    /// Sends the first burst, which is not measured: every byte is generated, and checked by the
    /// receiver.
    fn send_whole(&mut self) -> Result<()> {
        let mut waiter = Waiter { gives_way: self.gives_way, ..Waiter::new(self.mode) };
        for i in 0..self.frames.len() {
            while self.frames[i].0.made() < self.whole {
                let left = self.whole - self.frames[i].0.made();
                self.send_burst(i, self.burst.min(left), &mut waiter)?;
            }
            self.frames[i].0.set_filling(Filling::Head);
        }
        settle(self.guest, self.mode)
    }

    fn send_for(&mut self, time: Duration) -> Result<()> {
        let mut waiter = Waiter { gives_way: self.gives_way, ..Waiter::new(self.mode) };
        let start = Instant::now();
        // When the next burst is due.
        let mut due = start;
        while start.elapsed() < time {
            let before = self.sent();
            for i in 0..self.frames.len() {
                self.send_burst(i, self.burst, &mut waiter)?;
            }
            if let Some(rate) = self.rate {
                // A sender that was kept waiting makes up for one burst and no more: the others
                // show as not sent.
                let burst = Duration::from_secs_f64((self.sent() - before) as f64 / rate);
                due = (due + burst).max(Instant::now().checked_sub(burst).unwrap_or(due));
                while Instant::now() < due {
                    std::thread::yield_now();
                }
            }
        }
        Ok(())
    }

    /// Sends one burst of `n` whole frames on queue `i`, or as many as fit.
    #[inline(always)]
    fn send_burst(&mut self, i: usize, n: u64, waiter: &mut Waiter) -> Result<()> {
        let (generator, arena) = &mut self.frames[i];
        let first = generator.made();
        arena.clear();
        generator.fill(arena, n);
        if first < self.whole {
            Fault::wanted().damage(arena, first);
        }
        let n = arena.len();
        let mut done = 0;
        while done < n {
            let frames = self.frames[i].1.burst().skip(done);
            let sent = match &mut self.own {
                Some(own) => own.send(self.guest, i, &frames, self.written)?,
                None => self.guest.send(i, &frames)?,
            };
            done += sent;
            let freed = self.guest.reclaim(i, self.want)?;
            // With buffers of its own the guest has something to ask now and then.
            if sent == 0 || self.own.is_some() {
                waiter.after(self.guest, sent > 0 || freed > 0, For::Answers)?;
            }
        }
        Ok(())
    }
}

/// Receives frames, with a sink for each queue.
struct Receiver {
    waiter: Waiter,
    arena: Arena,
    sinks: Vec<CheckingSink>,
    rx: RxWay,
    consumer: Consumer,
    lent: Lent,
    /// Number of slots of a frame.
    slots: usize,
    /// True if a part of a zero-copy frame's number is outside of its head.
    reads_more: bool,
    whole: bool,
}

impl Receiver {
    /// Receives frames until the time `until`, or until `marks` marks of the back arrived on every
    /// queue.
    fn take_until(&mut self, guest: &mut Guest, until: Option<Instant>, marks: u64) -> Result<u64> {
        let mut frames = 0;
        self.waiter.until = until;
        loop {
            match until {
                Some(until) if Instant::now() >= until => return Ok(frames),
                // A mark is no numbered frame, and the only such that the back sends.
                None if self.sinks.iter().all(|s| s.report().foreign >= marks) => return Ok(frames),
                _ => {}
            }
            let mut moved = false;
            for (i, sink) in self.sinks.iter_mut().enumerate() {
                self.arena.clear();
                // Whole frames are checked in the arena.
                let rx = if self.whole && self.rx != RxWay::Reference { RxWay::Copy } else { self.rx };
                let n = match rx {
                    RxWay::Hook | RxWay::SendOn => {
                        self.consumer.hook(guest, i, &mut self.arena, sink, (rx, self.slots))?
                    }
                    RxWay::Reference => guest.recv_by_reference(i, &mut self.arena, &mut self.lent, 1)?,
                    _ => guest.recv(i, &mut self.arena, 1)?,
                };
                if n > 0 {
                    if self.whole {
                        self.lent.copy(&mut self.arena, |token, k| guest.vif().piece(token, k));
                    } else if self.reads_more {
                        for i in 0..self.arena.len() {
                            let piece = |token, k| guest.vif().piece(token, k);
                            self.lent.read_more(&mut self.arena, i, READ_BYTES, piece);
                        }
                    }
                    if !matches!(rx, RxWay::Hook | RxWay::SendOn) {
                        sink.take(&self.arena.burst());
                        let wait = |guest: &mut Guest, moved| self.waiter.after(guest, moved, For::Answers);
                        self.consumer.consume(guest, i, &mut self.arena, rx, wait)?;
                    }
                    if self.lent.frames() != 0 {
                        guest.release(self.lent.tokens())?;
                        self.lent.clear();
                    }
                    frames += n as u64;
                    moved = true;
                }
            }
            self.waiter.after(guest, moved, For::Rx)?;
        }
    }
}

fn receive(guest: &mut Guest, case: &Case) -> Result<Played> {
    let mode = case.mode;
    let mut receiver = Receiver {
        waiter: Waiter { gives_way: case.gives_way, ..Waiter::new(mode) },
        arena: Arena::new(),
        sinks: Vec::new(),
        rx: case.rx,
        consumer: Consumer::new(),
        lent: Lent::with_head(case.rx_head),
        slots: case.size.div_ceil(PAGE_SIZE),
        reads_more: case.rx_head < READ_BYTES,
        whole: true,
    };
    receiver.sinks.resize_with(guest.vif().nr_queues(), || CheckingSink::new(Check::Payload));
    send_mark(guest, mode)?;
    // The untimed burst. The back signals its end on each queue.
    receiver.take_until(guest, None, 1)?;
    let checked = receiver.sinks.iter().map(|s| s.report().frames + s.report().damaged).sum();
    receiver.sinks.iter_mut().for_each(|sink| sink.set_check(Check::Number));
    receiver.whole = false;
    send_mark(guest, mode)?;
    receiver.take_until(guest, Some(Instant::now() + WARM_UP), 0)?;
    send_mark(guest, mode)?;
    let (began, until) = (spent(guest), Instant::now() + Duration::from_secs_f64(case.seconds));
    let frames = receiver.take_until(guest, Some(until), 0)?;
    let mut played = Played { frames, spent: spent(guest).since(&began), checked, ..Played::default() };
    // Frames that come now are not measured.
    receiver.rx = RxWay::Copy;
    let hooked = guest.vif().queue(0).map(FrontQueue::hook_stats).unwrap_or_default();
    if case.rx == RxWay::SendOn && (hooked.sent_on == 0 || hooked.sent_copied + hooked.unsent > 0) {
        return Err(format!("frames were to be sent on in their buffers: {hooked:?}").into());
    }
    // The back sees that it has ended, and signals on each queue that no more frames come.
    send_mark(guest, mode)?;
    receiver.take_until(guest, None, 2)?;
    played.came = Came::of(receiver.sinks.iter().map(CheckingSink::report));
    Ok(played)
}

/// Sends one frame at a time, and waits until it comes back.
pub fn echo(guest: &mut Guest, case: &Case) -> Result<Played> {
    let mode = case.mode;
    let mut out = Arena::new();
    let Some(frame) = out.room(case.size.max(64), Offload::default()) else {
        return Err("no room for a frame".into());
    };
    Head::default().fill(frame, 0);
    let mut into = Arena::new();
    let mut there = Histogram::<u64>::new_with_bounds(1, 100_000_000_000, 3)?;
    let mut back = Histogram::<u64>::new_with_bounds(1, 100_000_000_000, 3)?;
    let mut played = Played::default();
    for _ in 0..3 {
        send_mark(guest, mode)?; // neither untimed burst nor warm-up; the third begins the count
    }
    let mut came = Tracker::new();
    let mut waiter = Waiter::new(mode);
    let began = spent(guest);
    let until = Instant::now() + Duration::from_secs_f64(case.seconds);
    while Instant::now() < until {
        let at = out.desc(0).at as usize;
        let bytes = &mut out.bytes_mut()[at..];
        Head::renumber(&mut bytes[..case.size.max(64)], played.sent);
        waiter.expect(LOST_AFTER);
        bytes[32..40].copy_from_slice(&MonotonicClock.now_ns().to_le_bytes());
        while guest.send(0, &out.burst())? == 0 {
            guest.reclaim(0, 1)?;
        }
        let own = played.sent;
        played.sent += 1;
        // A frame's own echo alone ends the wait: one that comes twice is no answer to the next.
        while !waiter.is_late() {
            into.clear();
            let n = guest.recv(0, &mut into, 1)?;
            let now = MonotonicClock.now_ns();
            let mut answered = false;
            for (frame, _) in into.burst().iter() {
                match sequence::number(frame) {
                    Ok(seq) => {
                        came.note(seq);
                        answered |= seq == own && note_round_trip(frame, now, &mut there, &mut back);
                    }
                    Err(_) => played.came.damaged += 1,
                }
            }
            if answered {
                played.frames += 1;
                waiter.after(guest, true, For::Rx)?;
                break;
            }
            guest.reclaim(0, 1)?;
            waiter.after(guest, n > 0, For::Rx)?;
        }
        guest.reclaim(0, 1)?;
    }
    let ended = spent(guest);
    played.came.next = came.next();
    played.came.missing = came.lost_of(played.sent);
    played.came.wrong = came.reordered() + came.duplicated();
    played.spent = ended.since(&began);
    played.latency = Some([Latencies::of(&there), Latencies::of(&back)]);
    send_mark(guest, mode)?;
    Ok(played)
}

/// Notes the time of a round trip and its parts, by the stamps in the frame. Returns false if the
/// frame has none.
fn note_round_trip(frame: &[u8], now: u64, there: &mut Histogram<u64>, back: &mut Histogram<u64>) -> bool {
    let stamps = frame.get(32..48).map(|stamps| stamps.as_chunks::<8>().0);
    let Some(&[sent, seen]) = stamps.map(|stamps| [stamps[0], stamps[1]]).as_ref() else { return false };
    let (sent, seen) = (u64::from_le_bytes(sent), u64::from_le_bytes(seen));
    there.saturating_record(seen.saturating_sub(sent));
    back.saturating_record(now.saturating_sub(seen));
    true
}
