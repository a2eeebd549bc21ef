//! The act in which the backend is killed in the middle of a TCP transfer, and a new process takes
//! up its rings.
//!
//! ```text
//!   kill -9      new process          attach          first frame at its ports   first frame at a guest
//!      |--- fork, exec, dynamic linker ---|--- attach_ns (the pause) ---|                   |
//!      |------------------------------- silence_ns ------------------------------------------|
//! ```
//! One guest may wait longer than that: `longest_gap_ns` is the longest time between two frames at
//! the same guest, of those that end after the kill.
//!
//! All times are CLOCK_MONOTONIC, read by whom they happen to. The new process is started after the
//! old one is gone; none waits in advance.

use super::Result;
use crate::record::{Of, Pause, Record, Restart};
use crate::stage::{self, DATA_LEN, Done, MTU, Stage, TRANSFER_BYTES};
use pregrant::platform::Clock;
use pregrant_cli::table::figure;
use pregrant_host::MonotonicClock;
use pregrant_testbed::answer;
use pregrant_testbed::process::process_command::ProcessCommand;
use pregrant_testbed::process::report::{Arrival, Report};
use pregrant_testbed::testbed::Grants;
use std::time::Duration;

/// Width of a bucket of the timeline.
const BUCKET_NS: u64 = 1_000_000;
/// Largest number of buckets before the kill, and after the first frame of the new backend.
const BEFORE: u64 = 50;
const AFTER: u64 = 200;
/// Largest number of buckets after the kill, however slow the machine is: a minute.
const AFTER_MOST: u64 = 60_000;

/// Interval of counting. It is longer than the pause, since counting uses time of a core.
const COUNT_EVERY: Duration = Duration::from_millis(20);
/// Number of counts. If the new process resumes nothing, it reports why at the end of the transfer.
const COUNTS: u32 = 100;

pub struct Restarted {
    done: Done,
    /// Duration in seconds of the same transfer without a kill.
    undisturbed_s: f64,
    pause: Pause,
    /// The process ids of the backend that was killed and of its successor.
    pids: [u32; 2],
    /// Grants before the kill, under the new process, and when the vifs are closed.
    grants: [Grants; 3],
}

/// Starts a transfer, kills the backend when half of the bytes have arrived, starts another one,
/// and waits for the end. `undisturbed_s` is the duration without a kill.
pub fn play(stage: &mut Stage, undisturbed_s: f64) -> Result<Restarted> {
    stage.begin(Some(TRANSFER_BYTES / 2), || ())?;
    answer!(stage.server_report()?, Report::Reached(_) => ());
    let old = stage.back.pid();
    let before = stage.testbed.grants()?;
    let killed_at_ns = MonotonicClock.now_ns();
    stage.back.kill()?;
    stage.back = stage::backend(&stage.testbed)?;
    stage.back.command(&ProcessCommand::Switch { vifs: 2, succeed: true })?;
    let pids = [old, stage.back.pid()];
    let after = taken_up(stage, before)?;
    let done = stage.end()?;
    let pause = pause_of(&done, killed_at_ns)?;
    Ok(Restarted { done, undisturbed_s, pause, pids, grants: [before, after, stage.testbed.grants()?] })
}

/// Counts the grants once the new backend uses as many as the old one did, or guests have ended
/// some.
fn taken_up(stage: &Stage, before: Grants) -> Result<Grants> {
    let mut now = Grants::default();
    for _ in 0..COUNTS {
        std::thread::sleep(COUNT_EVERY);
        now = stage.testbed.grants()?;
        if now == before || now.granted < before.granted {
            break;
        }
    }
    Ok(now)
}

fn pause_of(done: &Done, killed_at_ns: u64) -> Result<Pause> {
    let (duplicated, lost) = done.repeated_and_lost()?;
    let (attach_at_ns, first_frame_at_ns) = (done.switched.attach_at_ns, done.switched.first_frame_at_ns);
    if first_frame_at_ns == 0 {
        return Err(
            "the transfer was over without the new backend: the kill came too late to show anything".into()
        );
    }
    let arrivals = [&done.sent.arrivals[..], &done.received.arrivals];
    let first_at_guest = arrivals
        .iter()
        .filter_map(|of| of.iter().map(|a| a.at_ns).find(|at| *at > attach_at_ns))
        .min()
        .ok_or("no frame came to a guest after the new backend had started")?;
    let (frames, kill_bucket) = timeline(arrivals, killed_at_ns, first_at_guest);
    Ok(Pause {
        start_ns: attach_at_ns.saturating_sub(killed_at_ns),
        attach_ns: first_frame_at_ns.saturating_sub(attach_at_ns),
        silence_ns: first_at_guest.saturating_sub(killed_at_ns),
        longest_gap_ns: arrivals.iter().map(|of| longest_gap(of, killed_at_ns)).max().unwrap_or(0),
        bytes_before: bytes_at(&done.received.arrivals, killed_at_ns),
        duplicated,
        lost,
        bucket_ns: BUCKET_NS,
        kill_bucket,
        frames,
    })
}

/// Returns the longest time between two arrivals at a guest of which the second is after the kill.
fn longest_gap(arrivals: &[Arrival], killed_at_ns: u64) -> u64 {
    let after = arrivals.windows(2).filter(|pair| pair[1].at_ns > killed_at_ns);
    after.map(|pair| pair[1].at_ns.saturating_sub(pair[0].at_ns)).max().unwrap_or(0)
}

/// Returns the number of bytes that had arrived at this time.
fn bytes_at(arrivals: &[Arrival], at_ns: u64) -> u64 {
    arrivals.iter().take_while(|a| a.at_ns <= at_ns).last().map_or(0, |a| a.bytes)
}

/// Counts the frames at both guests in each bucket around the kill, until after the frame at
/// `again_at_ns`, however late that was. Also returns the index of the bucket that begins with the
/// kill. There are no buckets before the first frame or after the last.
fn timeline(arrivals: [&[Arrival]; 2], killed_at_ns: u64, again_at_ns: u64) -> (Vec<u64>, usize) {
    let all = || arrivals.into_iter().flatten();
    let first = all().map(|a| a.at_ns).min().unwrap_or(killed_at_ns);
    let last = all().map(|a| a.at_ns).max().unwrap_or(killed_at_ns);
    let before = killed_at_ns.saturating_sub(first).div_ceil(BUCKET_NS).min(BEFORE);
    let most = (again_at_ns.saturating_sub(killed_at_ns) / BUCKET_NS).saturating_add(AFTER).min(AFTER_MOST);
    let after = (last.saturating_sub(killed_at_ns) / BUCKET_NS + 1).min(most);
    let begin = killed_at_ns - before * BUCKET_NS;
    let mut frames = vec![0; (before + after) as usize];
    for arrival in all() {
        let bucket = arrival.at_ns.checked_sub(begin).map(|ns| ns / BUCKET_NS);
        if let Some(bucket) = bucket.and_then(|b| frames.get_mut(b as usize)) {
            *bucket += u64::from(arrival.frames);
        }
    }
    (frames, before as usize)
}

impl Restarted {
    pub fn lines(&self) -> Vec<String> {
        let (pause, [old, new], [before, after, end]) = (&self.pause, self.pids, self.grants);
        let ms = |ns: u64| figure(ns as f64 / 1e6);
        vec![
            format!("process {old} was killed (SIGKILL) when {} bytes had arrived", pause.bytes_before),
            format!(
                "process {new} took over: startup took {} ms, from the kill until it began to attach",
                ms(pause.start_ns)
            ),
            format!(
                "the pause, from there to the first frame at its ports: {} ms; the first frame reached a guest {} ms after \
                 the kill",
                ms(pause.attach_ns),
                ms(pause.silence_ns)
            ),
            format!("the longest time in which one guest got no frame: {} ms", ms(pause.longest_gap_ns)),
            format!(
                "frames that came to the backend's ports twice: {} (64 may); lost with the process: {}{}",
                pause.duplicated,
                pause.lost,
                if pause.lost > 0 { ", which TCP sent again" } else { "" }
            ),
            self.done.summary(),
            format!("grants before the kill: {before}"),
            format!("grants under the new process: {after}; when the vifs are closed: {end}"),
            format!(
                "the transfer took {:.2} s; without a kill, in act 3, {:.2} s",
                self.done.sent.seconds, self.undisturbed_s
            ),
        ]
    }

    pub fn record(&self) -> Record {
        let done = &self.done;
        let mut record = Record::new("restart", "staging", "tx", MTU as u64 + 14);
        record.count(done.sent.frames[1] + done.received.frames[1], done.sent.seconds);
        record.bits_per_s = done.received.bytes as f64 * 8.0 / done.sent.seconds;
        record.data_len = Some(DATA_LEN.into());
        record.mode = "adaptive".into();
        record.workers = Some(stage::WORKERS as u32);
        record.lost = self.pause.lost;
        record.repeated = Some(self.pause.duplicated);
        record.missed_wakeups = Some(done.missed_wakeups());
        record.notifications = done.sent.notifications + done.received.notifications;
        record.of = Of::Restart(Restart { pause: self.pause.clone() });
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = BUCKET_NS;

    fn at(at_ns: u64, frames: u32, bytes: u64) -> Arrival {
        Arrival { at_ns, frames, bytes }
    }

    #[test]
    fn the_timeline_has_every_frame_around_the_kill_in_its_bucket() {
        let kill = 1000 * MS;
        let client = [at(kill - 2 * MS - 1, 3, 0), at(kill - 1, 1, 0), at(kill, 2, 0)];
        let server = [at(kill - 2 * MS, 4, 10), at(kill + 3 * MS + 5, 7, 20)];
        assert_eq!(timeline([&client, &server], kill, kill + 3 * MS), (vec![3, 4, 1, 2, 0, 0, 7], 3));
        assert_eq!(bytes_at(&server, kill), 10);
        assert_eq!(bytes_at(&server, kill - 3 * MS), 0);
    }

    #[test]
    fn the_longest_gap_is_one_guest_s_and_ends_after_the_kill() {
        let kill = 1000 * MS;
        // The longest of all was over before the kill; the last frame before it begins a gap.
        let arrivals = [0, 900, 998, 1004, 1005, 1009].map(|ms| at(ms * MS, 1, 0));
        assert_eq!(longest_gap(&arrivals, kill), 6 * MS);
        assert_eq!(longest_gap(&arrivals[..5], 1004 * MS), MS);
        assert_eq!(longest_gap(&arrivals[..1], 0), 0);
    }

    #[test]
    fn the_timeline_is_bounded_and_may_be_empty() {
        let (apart, kill) = ([at(0, 1, 0), at(900 * MS, 1, 0)], 500 * MS);
        let (frames, kill_bucket) = timeline([&apart, &[]], kill, kill);
        assert_eq!((frames.len() as u64, kill_bucket as u64), (BEFORE + AFTER, BEFORE));
        assert_eq!(frames.iter().sum::<u64>(), 0);
        assert_eq!(timeline([&[], &[]], kill, kill), (vec![0], 0));
        let late = [at(kill, 1, 0), at(u64::MAX / 2, 1, 0)];
        assert_eq!(timeline([&late, &[]], kill, u64::MAX / 2).0.len() as u64, AFTER_MOST);
    }

    #[test]
    fn frames_after_a_long_silence_are_in_the_timeline() {
        let kill = 1000 * MS;
        let again = kill + 424 * MS;
        let (frames, kill_bucket) =
            timeline([&[at(kill - 1, 2, 0), at(again, 3, 0), at(again + 9 * MS, 4, 0)], &[]], kill, again);
        assert_eq!(frames[kill_bucket..].iter().sum::<u64>(), 7);
    }
}
