//! The process of a guest that will be killed: a real front with frames in both directions.

use crate::traffic::Traffic;
use crate::world::{self, GUEST};
use pregrant::net::front::FrontConfig;
use pregrant::net::front::Granting;
use pregrant_host::drivers::wait::UNBOUNDED;
use pregrant_loopback::Loopback;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Number of frames that one guest sends.
pub const NUMBERS: u64 = 3000;

#[derive(Clone, Copy, Debug)]
pub struct Orders {
    /// Number of its first frame.
    pub first: u64,
    pub queues: u32,
    pub staged: bool,
    /// Grants for each frame, not standing ones.
    pub per_frame: bool,
}

impl Orders {
    pub fn start(&self, socket: &PathBuf) -> Guest {
        let words = [self.first, self.queues.into(), self.staged.into(), self.per_frame.into()];
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("guest").args(words.map(|w| w.to_string())).arg(socket).stdin(Stdio::piped());
        command.env(UNBOUNDED, "unbounded");
        Guest(command.spawn().unwrap())
    }
}

pub struct Guest(Child);

impl Guest {
    pub fn kill(&mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "the guest ended by itself: see above");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Sends and receives until it is killed.
pub fn play(orders: &[String], path: &Path) {
    let words: Vec<u64> = orders.iter().map(|w| w.parse().unwrap()).collect();
    let [first, queues, staged, per_frame] = words[..] else { panic!("four numbers") };
    // No one is left alone when the test has failed.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let platform = Loopback::attach(path, GUEST).unwrap();
    let xs = world::client(&platform);
    let mut config = FrontConfig { queues: queues as u32, ..FrontConfig::default() };
    config.granting = if per_frame != 0 { Granting::PerFrame } else { Granting::Standing };
    config.persistent = per_frame == 0;
    if staged == 0 {
        (config.staging.tx, config.staging.rx) = (None, None);
    }
    let mut traffic = Traffic::new((platform, xs), config, false, first..first + NUMBERS);
    traffic.sleep_most = None;
    loop {
        traffic.step(true);
    }
}
