//! A network namespace of a test's own, with `ip` to change it.
#![expect(unsafe_code, reason = "a thread's leaving its namespace is unsafe in rustix")]

use pregrant::port::Offloads;
use pregrant_testkit::skip::skip;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::process::Command;

pub const BOTH: Offloads = Offloads { csum: true, gso: true };
pub const GUEST_MAC: [u8; 6] = [0x00, 0x16, 0x3e, 0, 0, 7];

/// Runs a test in a network namespace of its own, or prints why it cannot.
pub fn apart(test: impl FnOnce() + Send + 'static) {
    let ended = std::thread::spawn(move || {
        // SAFETY: this thread alone changes its network namespace; it holds no file descriptors of
        // the old one that matter.
        if let Err(e) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
            return skip(format!("no network namespace of its own ({e}); needs root"));
        }
        if !std::path::Path::new("/dev/net/tun").exists() {
            return skip("there is no /dev/net/tun; modprobe tun");
        }
        test();
    });
    ended.join().expect("see above");
}

/// Like `apart`, without IPv6, whose stack sends frames by itself.
pub fn apart_without_ipv6(test: impl FnOnce() + Send + 'static) {
    apart(|| {
        for of in ["all", "default"] {
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6"), "1");
        }
        test();
    });
}

/// Runs `ip` with these arguments. Returns false if there is no `ip`, or it failed.
pub fn ip(args: &str) -> bool {
    Command::new("ip").args(args.split(' ')).status().is_ok_and(|s| s.success())
}
