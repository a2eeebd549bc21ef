//! Frames that the interface of `pregrant front --tap` lost between the kernel and the vif: a line
//! in the log while it loses some, and what it lost in all when it ends.
//!
//! A port counts as its guest sees it whom it serves, a backend's. Here it is the other way round:
//! what a port has as RX comes from this guest's kernel, and is this guest's TX.
//!
//! What the back may do: send what the kernel refuses, and have a line a minute.

use pregrant::port::{FramePort, PortDrop};
use pregrant_host::ports::tap::TapPort;
use std::time::{Duration, Instant};

/// The interval between two log lines.
const EACH: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Drops {
    /// The numbers of frames that ports of earlier connections dropped.
    before: Vec<PortDrop>,
    /// The number of lost frames that the last line reported, and the time of that line.
    said: (u64, Option<Instant>),
}

impl Drops {
    pub(super) fn keep(&mut self, ports: &[TapPort]) {
        self.before = self.all(ports);
    }

    /// Counts the dropped frames by reason, over all connections. The ports of one connection count
    /// together.
    fn all(&self, ports: &[TapPort]) -> Vec<PortDrop> {
        let mut all = self.before.clone();
        for drop in ports.first().map(FramePort::drops).unwrap_or_default() {
            match all.iter_mut().find(|one| (one.dir, one.reason) == (drop.dir, drop.reason)) {
                Some(one) => one.frames += drop.frames,
                None => all.push(drop),
            }
        }
        all
    }

    /// Describes the lost frames; None: there are none.
    pub(super) fn words(&self, ports: &[TapPort]) -> Option<String> {
        let all = self.all(ports);
        let words = all.iter().filter(|drop| drop.frames > 0).map(|drop| {
            let way = match (drop.dir, drop.reason) {
                ("rx", _) => "to the back, whose checksum or segment size does not fit their headers",
                (_, "bad_headers") => {
                    "from the back, whose checksum or segment size does not fit their headers"
                }
                _ => "from the back, which the kernel refused: the interface is down, or its queue is full",
            };
            format!("{} on their way {way}", drop.frames)
        });
        let words: Vec<String> = words.collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// Logs a line if more frames were lost since the last line.
    pub(super) fn log(&mut self, interface: &str, ports: &[TapPort]) {
        let lost = self.all(ports).iter().map(|drop| drop.frames).sum();
        let (said, at) = self.said;
        if lost == said || at.is_some_and(|at| at.elapsed() < EACH) {
            return;
        }
        self.said = (lost, Some(Instant::now()));
        if let Some(words) = self.words(ports) {
            // LOG: one a minute at most.
            log::warn!("interface {interface}: {lost} frame(s) were dropped: {words}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_reported_by_way_and_reason() {
        let drop = |dir, reason, frames| PortDrop { dir, reason, frames };
        let drops = |before| Drops { before, ..Drops::default() };
        assert_eq!(drops(vec![drop("tx", "tap_refused", 0)]).words(&[]), None);
        let lost = drops(vec![drop("tx", "tap_refused", 2), drop("rx", "bad_headers", 7)]).words(&[]);
        let lost = lost.expect("some were lost");
        assert!(lost.starts_with("2 on their way from the back, which the kernel refused"), "{lost}");
        assert!(lost.contains("; 7 on their way to the back, whose checksum"), "{lost}");
    }
}
