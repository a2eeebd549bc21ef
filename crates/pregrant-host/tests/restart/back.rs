//! The back's process: a real [`Backend`] between the guest and a port that keeps account in the log.

use crate::world::{self, Log, Word};
use pregrant::net::back::Ordinary;
use pregrant::net::features::BackFeatures;
use pregrant::platform::{Clock, Events, Platform, ReadySet};
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads};
use pregrant_host::drivers::{Backend, BrokerSuccession, Mode, Next, Pace};
use pregrant_host::loopback::MonotonicClock;
use pregrant_host::ports::sequence;
use pregrant_host::wake::WakeOn;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Frames for the guest in a burst.
pub const BURST: u32 = 5;

fn first_frame(log: &Log, began_ns: u64) {
    if log.get(Word::PauseUs) == 0 {
        log.set(Word::PauseUs, ((MonotonicClock.now_ns() - began_ns) / 1000).max(1) as u32);
    }
}

struct LogPort {
    log: Arc<Mutex<Log>>,
    began_ns: u64,
    last: Option<u64>,
}

impl FramePort for LogPort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        let log = self.log.lock().unwrap();
        first_frame(&log, self.began_ns);
        for (frame, _) in frames.iter() {
            let Ok(seq) = sequence::check(frame) else {
                log.add(Word::Damaged);
                continue;
            };
            if self.last.is_some_and(|last| seq <= last) {
                log.add(Word::Reordered);
            }
            self.last = Some(seq);
            log.note(seq);
        }
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let log = self.log.lock().unwrap();
        let (next, size) = (log.get(Word::Next), log.get(Word::Size) as usize);
        let n = log.get(Word::Limit).saturating_sub(next).min(BURST);
        for seq in next..next + n {
            let mut frame = vec![0; size];
            sequence::fill(&mut frame, u64::from(seq));
            assert!(into.push(&frame, Offload::default()));
        }
        if n > 0 {
            first_frame(&log, self.began_ns);
        }
        log.set(Word::Next, next + n);
        n as usize
    }
}

/// Serves until its standard input ends, then leaves.
pub fn play(ordinary: &str, path: &Path) {
    let began_ns = MonotonicClock.now_ns();
    let platform = world::attach(path);
    let log = Arc::new(Mutex::new(Log::open(&platform)));
    let xs = world::client(&platform);
    platform.events().also_wake_on(xs.transport().as_fd()).unwrap();
    platform.events().also_wake_on(std::io::stdin().as_fd()).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&over);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        heard.store(true, Ordering::Relaxed);
    });
    let ports = Box::new(move |_: &_, n: usize, _| {
        let port = || LogPort { log: Arc::clone(&log), began_ns, last: None };
        (0..n).map(|_| Box::new(port()) as Box<dyn FramePort>).collect()
    });
    let ordinary = if ordinary == "map" { Ordinary::Map } else { Ordinary::Copy };
    let mut backend = Backend::new(platform, xs, BackFeatures::default(), ordinary, ports).unwrap();
    backend.succeed(Box::new(BrokerSuccession));
    let (mut pace, mut ready, mut said) = (Pace::new(Mode::Adaptive), ReadySet::default(), false);
    while !over.load(Ordering::Relaxed) {
        match pace.after(backend.round()) {
            Next::Again => continue,
            Next::Control => {}
            Next::Sleep => {
                if !backend.control().unwrap() && !backend.arm() {
                    backend.platform().events().wait(&mut ready, Some(Duration::from_millis(50)));
                }
            }
        }
        backend.control().unwrap();
        if !said && backend.nr_live() > 0 {
            said = true;
            println!("live");
        }
    }
    assert_eq!(backend.leave().lost, 0, "no frame waited for slots");
}
