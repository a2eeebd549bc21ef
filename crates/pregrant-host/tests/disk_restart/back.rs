//! The back's process: a real [`Backend`] for vbds, whose images are files.

use crate::world::{BACK, LIMIT, LOGS, client};
use pregrant::blk::back::VbdConfig;
use pregrant::platform::Platform;
use pregrant_host::disks::DiskConfig;
use pregrant_host::drivers::{
    Backend, BackendConfig, Blk, BlkConfig, Mode, Placement, RxContext, WorkerConfig,
};
use pregrant_host::wake::WakeOn;
use pregrant_loopback::{BrokerRecovery, Loopback};
use pregrant_test_machine::log_lines;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Serves until its standard input ends, and then leaves its disks to a successor; or closes them,
/// if something arrives on standard input.
pub fn play(socket: &Path, io: &str, path: &str) {
    // SAFETY: it is ignored from here on, and no handler runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if let Ok(limit) = std::env::var(LIMIT) {
        let most = Some(limit.parse().unwrap());
        setrlimit(Resource::Fsize, Rlimit { current: most, maximum: most }).unwrap();
    }
    if std::env::var_os(LOGS).is_some() {
        log_lines::to_stderr();
    }
    let platform = Loopback::attach(socket, BACK).unwrap();
    let xs = client(&platform);
    platform.events().also_wake_on(xs.transport().as_fd()).unwrap();
    platform.events().also_wake_on(std::io::stdin().as_fd()).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    let reported = std::thread::spawn(move || {
        let came = std::io::stdin().read(&mut [0]).unwrap();
        stop.store(true, Ordering::Relaxed);
        came
    });
    let blk = BlkConfig {
        vbd: VbdConfig { fallback: path.parse().unwrap(), ..VbdConfig::default() },
        disk: DiskConfig { io: io.parse().unwrap(), direct: true },
        ..BlkConfig::default()
    };
    let config = BackendConfig { recovery: Some(Box::new(BrokerRecovery)), ..BackendConfig::default() };
    let mut backend = Backend::new(platform, xs, config, vec![Box::new(Blk::new(blk))]).unwrap();
    let workers = WorkerConfig {
        workers: 2,
        place: Placement::Balanced,
        rx_context: RxContext::default(),
        mode: Mode::Adaptive,
        each_start: Arc::new(|_| {}),
        each_turn: Arc::new(|| {}),
    };
    backend.start_workers(workers).unwrap();
    while !over.load(Ordering::Relaxed) {
        if !backend.control().unwrap() {
            backend.sleep(None);
        }
    }
    if reported.join().unwrap() > 0 {
        backend.close_all();
    } else {
        backend.detach();
    }
}
