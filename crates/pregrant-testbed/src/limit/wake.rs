//! Measures an eventfd there and back, which shows what a notification costs when the other end
//! sleeps.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::{read, write};

use super::{Measured, joined, pin};
use crate::cpu_time;

/// System calls of one round trip: each end writes once and reads once.
const CALLS: u64 = 4;

fn signal(fd: &OwnedFd) -> io::Result<()> {
    write(fd, &1u64.to_ne_bytes())?;
    Ok(())
}

fn wait(fd: &OwnedFd) -> io::Result<()> {
    loop {
        match read(fd, &mut [0u8; 8]) {
            Err(rustix::io::Errno::INTR) => {}
            done => return done.map(drop).map_err(Into::into),
        }
    }
}

/// Counts the round trips between a thread on `cores[0]` and one on `cores[1]`.
pub fn round_trips(cores: [usize; 2], run_for: Duration) -> io::Result<Measured> {
    let there = eventfd(0, EventfdFlags::CLOEXEC)?;
    let back = eventfd(0, EventfdFlags::CLOEXEC)?;
    let stop = AtomicBool::new(false);

    let answer = || -> io::Result<u64> {
        let pinned = pin(cores[1]);
        let cpu = cpu_time::of_this_thread();
        loop {
            wait(&there)?;
            if stop.load(Ordering::Acquire) {
                pinned?;
                return Ok(cpu_time::of_this_thread() - cpu);
            }
            signal(&back)?;
        }
    };
    let ask = || -> io::Result<Measured> {
        pin(cores[0])?;
        let (start, cpu) = (Instant::now(), cpu_time::of_this_thread());
        let mut frames = 0;
        loop {
            signal(&there)?;
            wait(&back)?;
            frames += 1;
            let elapsed = start.elapsed();
            if elapsed >= run_for {
                return Ok(Measured {
                    frames,
                    seconds: elapsed.as_secs_f64(),
                    giver_cpu_ns: cpu_time::of_this_thread() - cpu,
                    taker_cpu_ns: 0,
                    syscalls: frames * CALLS,
                });
            }
        }
    };
    std::thread::scope(|scope| {
        let answering = scope.spawn(answer);
        let asked = joined(scope.spawn(ask).join());
        stop.store(true, Ordering::Release);
        signal(&there)?;
        let taker_cpu_ns = joined(answering.join())?;
        Ok(Measured { taker_cpu_ns, ..asked? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wake_is_answered() {
        let cores = crate::limit::cores().unwrap();
        let pair = [cores[0], *cores.get(1).unwrap_or(&cores[0])];
        let m = round_trips(pair, Duration::from_millis(5)).unwrap();
        assert!(m.frames > 0);
        assert_eq!(m.syscalls, m.frames * CALLS);
        assert!(round_trips([1023, cores[0]], Duration::ZERO).is_err(), "no such core");
        assert!(round_trips([cores[0], 1023], Duration::ZERO).is_err(), "no such core");
    }
}
