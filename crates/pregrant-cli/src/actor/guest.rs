//! A guest's process: one vif, as its own program would use it.

use super::back::mark;
use super::order::{Case, Dir, Latencies, Order, Played, Report, Waiting};
use super::{ActorArgs, Result, cpu_ns, next_order, tell};
use hdrhistogram::Histogram;
use pregrant::net::front::Wishes;
use pregrant::net::front::pages::Granting;
use pregrant::net::staging_list::DataLen;
use pregrant::platform::{Clock, Events, Platform, ReadySet};
use pregrant::port::{Arena, Offload};
use pregrant_host::MonotonicClock;
use pregrant_host::drivers::{Frontend, Mode, Next, Pace};
use pregrant_host::loopback::Loopback;
use pregrant_host::ports::sequence::Head;
use pregrant_host::ports::sink::{Check, Sink};
use pregrant_host::wake::WakeOn;
use pregrant_host::xenstored::UnixTransport;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A guest's driver with its connection.
pub type Guest = Frontend<Loopback, UnixTransport>;

/// How long both ends run before the time is counted.
const WARM_UP: Duration = Duration::from_millis(20);
/// Longest wait for a handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// Carries out orders.
pub fn play(args: &ActorArgs) -> Result<()> {
    // The domain lives as long as its first process' attachment.
    let keep = Loopback::attach(&args.broker, pregrant::DomId(args.domid))?;
    while let Some(order) = next_order()? {
        let played = match order {
            Order::Case(case) => case_of(args, &case).map(|p| Report::Case(Box::new(p))),
            Order::Transfer(transfer) => super::transfer::play(args, &transfer),
            Order::Annoy { nuisance, size } => super::neighbour::play(args, nuisance, size),
            Order::Switch { .. } | Order::Beside { .. } => Err("that is the back's order".into()),
        };
        tell(&played.unwrap_or_else(|e| Report::Failed(e.to_string())))?;
    }
    drop(keep);
    Ok(())
}

/// Attaches, connects vif `handle`, wakes on xenstore.
pub fn connect(args: &ActorArgs, handle: u32, wishes: Wishes) -> Result<Guest> {
    let (platform, xs) = args.attach()?;
    platform.events().also_wake_on(xs.transport().as_fd())?;
    let mut guest = Frontend::new(platform, xs, handle, wishes, false)?;
    if !guest.connect(PATIENCE)? {
        let (own, back) = guest.states()?;
        let at = guest.device().id();
        return Err(
            format!("{at}: not connected after {PATIENCE:?}: we are {own:?}, the back is {back:?}").into()
        );
    }
    Ok(guest)
}

/// What a guest wishes for, by data length.
pub fn wishes(data_len: Option<u32>, queues: u32) -> Wishes {
    let len = data_len.and_then(DataLen::new);
    let granting = Granting::PerFrame;
    Wishes { queues, tx_data_len: len, rx_data_len: len, granting, ..Wishes::default() }
}

/// One case, from connect to close.
fn case_of(args: &ActorArgs, case: &Case) -> Result<Played> {
    let mut guest = connect(args, case.handle, wishes(case.data_len, case.queues))?;
    let staged = guest.vif().staging_accepted(0);
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
    played.path = if staged { "staging" } else { "ordinary" }.into();
    played.platform = guest.platform().describe();
    if !guest.close(PATIENCE)? {
        return Err(format!(
            "{}: the back did not let go of our memory in {PATIENCE:?}",
            guest.device().id()
        )
        .into());
    }
    Ok(played)
}

/// What a guest waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// Frames.
    Rx,
    /// Answers to what it sent (and frames).
    Answers,
}

/// Waits between rounds as the mode says, and gives up when nothing moves for a long time.
struct Waiter {
    pace: Pace,
    gives_way: bool,
    ready: ReadySet,
    quiet_since: Option<Instant>,
}

impl Waiter {
    fn new(mode: Mode) -> Self {
        Self { pace: Pace::new(mode), gives_way: false, ready: ReadySet::default(), quiet_since: None }
    }

    /// After a round in which something moved or nothing.
    #[inline]
    fn after(&mut self, guest: &mut Guest, moved: bool, what: For) -> Result<()> {
        if moved {
            self.quiet_since = None;
        }
        match self.pace.after(moved) {
            Next::Again => {
                if self.gives_way && !moved {
                    std::thread::yield_now();
                }
                Ok(())
            }
            Next::Control => self.control(guest),
            Next::Sleep => {
                if !guest.arm(what == For::Answers)? {
                    guest.platform().events().wait(&mut self.ready, Some(Duration::from_millis(20)));
                }
                self.control(guest)
            }
        }
    }

    fn control(&mut self, guest: &mut Guest) -> Result<()> {
        guest.control(Duration::ZERO)?;
        if !guest.vif().is_live() {
            return Err("the back closed the vif; its log says why".into());
        }
        let since = *self.quiet_since.get_or_insert_with(Instant::now);
        if since.elapsed() > PATIENCE {
            let n: u32 = (0..guest.vif().nr_queues()).map(|i| guest.vif().in_flight(i)).sum();
            return Err(format!("nothing moved for {PATIENCE:?}; {n} TX requests have no answer").into());
        }
        Ok(())
    }
}

/// Sends one mark, alone: after everything before it was answered, before anything else.
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

/// Sends numbered frames as fast as they are taken.
struct Sender<'a> {
    guest: &'a mut Guest,
    frames: Vec<Arena>,
    next: Vec<u64>,
    mode: Mode,
    seconds: f64,
    /// Frames a second at most.
    rate: Option<f64>,
    gives_way: bool,
    /// Answers to wait for before the ring's lines are touched.
    want: u32,
}

impl<'a> Sender<'a> {
    fn new(guest: &'a mut Guest, case: &Case) -> Self {
        let queues = guest.vif().nr_queues();
        let head = Head::default();
        let frames: Vec<Arena> = (0..queues)
            .map(|_| {
                let mut arena = Arena::new();
                for _ in 0..case.burst {
                    if let Some(frame) = arena.room(case.size, Offload::default()) {
                        head.fill(frame, 0);
                    }
                }
                arena
            })
            .collect();
        let slots = case.size.div_ceil(4096) as u32;
        let want = if slots > 1 { slots } else { (case.burst as u32 / 2).max(1) };
        Self {
            guest,
            frames,
            next: vec![0; queues],
            mode: case.mode.into(),
            seconds: case.seconds,
            rate: case.rate,
            gives_way: case.gives_way,
            want,
        }
    }

    fn run(mut self) -> Result<Played> {
        send_mark(self.guest, self.mode)?;
        self.send_for(WARM_UP)?;
        send_mark(self.guest, self.mode)?;
        let counters = self.guest.platform().counters();
        let (cpu, before, start) = (cpu_ns(), self.sent(), Instant::now());
        self.send_for(Duration::from_secs_f64(self.seconds))?;
        settle(self.guest, self.mode)?;
        let played = Played {
            frames: self.sent() - before,
            seconds: start.elapsed().as_secs_f64(),
            sent: self.sent(),
            counters: self.guest.platform().counters().since(&counters).into(),
            cpu_ns: cpu_ns() - cpu,
            ..Played::default()
        };
        send_mark(self.guest, self.mode)?;
        Ok(played)
    }

    fn sent(&self) -> u64 {
        self.next.iter().sum()
    }

    fn send_for(&mut self, time: Duration) -> Result<()> {
        let mut waiter = Waiter { gives_way: self.gives_way, ..Waiter::new(self.mode) };
        let (start, before) = (Instant::now(), self.sent());
        while start.elapsed() < time {
            for i in 0..self.frames.len() {
                self.send_burst(i, &mut waiter)?;
            }
            if let Some(rate) = self.rate {
                let due = Duration::from_secs_f64((self.sent() - before) as f64 / rate);
                std::thread::sleep(due.saturating_sub(start.elapsed()));
            }
        }
        Ok(())
    }

    /// One burst on queue `i`, whole.
    #[inline(always)]
    fn send_burst(&mut self, i: usize, waiter: &mut Waiter) -> Result<()> {
        let arena = &mut self.frames[i];
        let n = arena.len();
        let seq = self.next[i];
        for k in 0..n {
            let desc = arena.desc(k);
            let at = desc.at as usize;
            Head::renumber(&mut arena.bytes_mut()[at..at + desc.len as usize], seq + k as u64);
        }
        let mut done = 0;
        while done < n {
            let sent = self.guest.send(i, &self.frames[i].burst().skip(done))?;
            done += sent;
            let freed = self.guest.reclaim(i, self.want)?;
            if sent == 0 {
                waiter.after(self.guest, freed > 0, For::Answers)?;
            }
        }
        self.next[i] += n as u64;
        Ok(())
    }
}

/// What receives: a sink for each queue.
struct Receiver {
    waiter: Waiter,
    arena: Arena,
    sinks: Vec<Sink>,
}

impl Receiver {
    /// Takes frames until then, or (None) until the back's mark came on every queue.
    fn take_until(&mut self, guest: &mut Guest, until: Option<Instant>) -> Result<u64> {
        let mut frames = 0;
        loop {
            match until {
                Some(until) if Instant::now() >= until => return Ok(frames),
                // A mark is no numbered frame, and the only such that the back sends.
                None if self.sinks.iter().all(|s| s.report().foreign > 0) => return Ok(frames),
                _ => {}
            }
            let mut moved = false;
            for (i, sink) in self.sinks.iter_mut().enumerate() {
                self.arena.clear();
                let n = guest.recv(i, &mut self.arena, 1)?;
                if n > 0 {
                    sink.take(&self.arena.burst());
                    frames += n as u64;
                    moved = true;
                }
            }
            self.waiter.after(guest, moved, For::Rx)?;
        }
    }
}

/// Receives numbered frames.
fn receive(guest: &mut Guest, case: &Case) -> Result<Played> {
    let mode: Mode = case.mode.into();
    let mut receiver = Receiver { waiter: Waiter::new(mode), arena: Arena::new(), sinks: Vec::new() };
    receiver.sinks.resize_with(guest.vif().nr_queues(), || Sink::new(Check::Number));
    send_mark(guest, mode)?;
    receiver.take_until(guest, Some(Instant::now() + WARM_UP))?;
    send_mark(guest, mode)?;
    let (counters, cpu, start) = (guest.platform().counters(), cpu_ns(), Instant::now());
    let frames = receiver.take_until(guest, Some(start + Duration::from_secs_f64(case.seconds)))?;
    let mut played = Played {
        frames,
        seconds: start.elapsed().as_secs_f64(),
        counters: guest.platform().counters().since(&counters).into(),
        cpu_ns: cpu_ns() - cpu,
        ..Played::default()
    };
    // The back hears that it is over, and says on each queue that nothing comes any more.
    send_mark(guest, mode)?;
    receiver.take_until(guest, None)?;
    for r in receiver.sinks.iter().map(Sink::report) {
        played.next += r.next;
        played.missing += r.lost;
        played.wrong += r.duplicated + r.reordered + r.damaged;
    }
    Ok(played)
}

/// One frame at a time, there and back.
fn echo(guest: &mut Guest, case: &Case) -> Result<Played> {
    let mode: Mode = case.mode.into();
    let mut out = Arena::new();
    let Some(frame) = out.room(case.size.max(64), Offload::default()) else {
        return Err("no room for a frame".into());
    };
    Head::default().fill(frame, 0);
    let mut into = Arena::new();
    let mut there = Histogram::<u64>::new_with_bounds(1, 100_000_000_000, 3)?;
    let mut back = Histogram::<u64>::new_with_bounds(1, 100_000_000_000, 3)?;
    let mut played = Played::default();
    for _ in 0..2 {
        send_mark(guest, mode)?; // the first begins the warm-up, the second the count
    }
    let counters = guest.platform().counters();
    let (cpu, start) = (cpu_ns(), Instant::now());
    let until = start + Duration::from_secs_f64(case.seconds);
    while Instant::now() < until {
        let at = out.desc(0).at as usize;
        let bytes = &mut out.bytes_mut()[at..];
        Head::renumber(&mut bytes[..case.size.max(64)], played.sent);
        bytes[32..40].copy_from_slice(&MonotonicClock.now_ns().to_le_bytes());
        while guest.send(0, &out.burst())? == 0 {
            guest.reclaim(0, 1)?;
        }
        played.sent += 1;
        let mut waiter = Waiter::new(mode);
        loop {
            into.clear();
            if guest.recv(0, &mut into, 1)? > 0 {
                break;
            }
            guest.reclaim(0, 1)?;
            waiter.after(guest, false, For::Rx)?;
        }
        let now = MonotonicClock.now_ns();
        let stamps = into.burst().frame(0).get(32..48).and_then(|s| s.split_first_chunk::<8>());
        if let Some((sent, seen)) = stamps
            && let Some(seen) = seen.first_chunk::<8>()
        {
            let (sent, seen) = (u64::from_le_bytes(*sent), u64::from_le_bytes(*seen));
            there.saturating_record(seen.saturating_sub(sent));
            back.saturating_record(now.saturating_sub(seen));
            played.frames += 1;
        }
        guest.reclaim(0, 1)?;
    }
    played.seconds = start.elapsed().as_secs_f64();
    played.next = played.frames;
    played.counters = guest.platform().counters().since(&counters).into();
    played.cpu_ns = cpu_ns() - cpu;
    played.latency = Some([latencies(&there), latencies(&back)]);
    send_mark(guest, mode)?;
    Ok(played)
}

/// Buckets of a histogram that a factor of two in time is cut into.
const BUCKETS_PER_OCTAVE: f64 = 32.0;

/// Percentiles, and the histogram in coarse buckets, those without a frame left out.
fn latencies(of: &Histogram<u64>) -> Latencies {
    let mut histogram: Vec<(u64, u64)> = Vec::new();
    for value in of.iter_recorded() {
        let (ns, count) = (value.value_iterated_to().max(1), value.count_since_last_iteration());
        let bucket = ((ns as f64).log2() * BUCKETS_PER_OCTAVE).ceil();
        let bound = (bucket / BUCKETS_PER_OCTAVE).exp2().ceil() as u64;
        match histogram.last_mut() {
            Some((last, frames)) if *last == bound => *frames += count,
            _ => histogram.push((bound, count)),
        }
    }
    Latencies { p50_ns: of.value_at_quantile(0.5), p99_ns: of.value_at_quantile(0.99), histogram }
}

/// How a mode is called on the command line and in records.
pub fn mode_name(mode: Waiting) -> &'static str {
    Mode::from(mode).name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_in_coarse_buckets_keeps_every_frame() {
        let mut all = Histogram::<u64>::new_with_bounds(1, 100_000_000_000, 3).unwrap();
        let times = [1, 256, 257, 300, 1000, 1000, 26_000, 5_000_000];
        times.iter().for_each(|t| all.saturating_record(*t));
        let coarse = latencies(&all).histogram;
        assert_eq!(coarse.iter().map(|(_, n)| n).sum::<u64>(), times.len() as u64);
        assert!(coarse.is_sorted_by(|a, b| a.0 < b.0), "{coarse:?}");
        for bound in coarse.windows(2).map(|w| w[1].0) {
            assert!(
                times.iter().any(|t| *t <= bound && (*t as f64) > bound as f64 / 1.1),
                "{bound} in {coarse:?}"
            );
        }
        assert!(coarse.contains(&(256, 1)) && coarse.iter().all(|(_, n)| *n > 0), "{coarse:?}");
    }
}
