//! One vbd that is served: its handshake, joined with its image.
//!
//! ```text
//!   place            a script of the toolstack's is waited for, where there is one
//!   connected        the image is open: the log has its name and size
//!   hand_out_queues  queue i and its disk's descriptor go to a worker, as one (`queue`); take_back_queues
//!   DeviceBacking    try_ahead: the image is opened and closed before the front comes: who attached it sees the error
//!                    under_way: a disk that is slow: its guest's close waits for it, a second at most
//!   PeriodicCheck    the image has another length: the guest is notified; it does not answer: a line in the log
//! ```
//! A guest that goes up and down without end uses up its lines in the log and is then counted only.

use super::queue::VbdQueue;
use crate::clock::MonotonicClock;
use crate::disks::ImageFace;
use crate::drivers::device_class::{
    AnyBack, DeviceBacking, Figures, Notes, Operation, PeriodicCheck, ServedDevice, ServedQueue, Trial,
    log_reattached,
};
use crate::drivers::device_log::DeviceLog;
use crate::drivers::overdue::{News, Overdue};
use crate::drivers::status::{FLUSH_FAILED, OLDEST_NS};
use log::Level;
use pregrant::blk::back::{BackVbd, Counts, Latencies, QueueShare, Tried};
use pregrant::blk::disk::DiskFigures;
use pregrant::blk::features::{DEVICE_PATH, DEVICE_TYPE, PARAMS, type_is_cdrom};
use pregrant::latency::Latency;
use pregrant::platform::{Clock, Platform};
use pregrant::xenbus::back::{Begin, Drained, HOTPLUG_STATUS};
use pregrant::xenbus::bus::{DeviceBus, StoreBus};
use pregrant::xenbus::{Device, DeviceError, DeviceId};
use pregrant::xenstore::{Client, Transport};
use rustix::fd::OwnedFd;
use std::any::Any;
use std::time::Duration;

/// The time that a disk that is being closed waits for requests in its image. After that the guest
/// sees state Closed, but its pages stay mapped until the image answers.
const LAST_REQUESTS: Duration = Duration::from_secs(1);
/// The key in which the toolstack names the disk's script.
const SCRIPT: &str = "script";

/// A disk with its image and its queues.
pub(super) struct VbdInstance<P: Platform> {
    vbd: BackVbd<P>,
    face: ImageFace,
    /// For each queue, a descriptor that is readable when the image has completed requests. The
    /// list is empty while workers have the queues.
    readable: Vec<Option<OwnedFd>>,
    awaits_scripts: bool,
    /// A warning about the image that was not logged yet.
    strange: Option<String>,
    overdue: Overdue,
}

impl<P: Platform> VbdInstance<P> {
    pub(super) fn new(vbd: BackVbd<P>, face: ImageFace, awaits_scripts: bool) -> Self {
        Self { vbd, face, readable: Vec::new(), awaits_scripts, strange: None, overdue: Overdue::default() }
    }

    /// Returns the age of the oldest request that is not answered; None: there is none. All
    /// platforms of this crate have this clock.
    fn oldest(&self) -> Option<Duration> {
        let taken_ns = self.vbd.oldest_ns()?;
        Some(Duration::from_nanos(MonotonicClock.now_ns().saturating_sub(taken_ns)))
    }

    /// Logs for how long the image has not answered, once for each age of a series.
    fn say_overdue(&mut self, log: &DeviceLog) {
        match self.overdue.check(self.oldest()) {
            None => {}
            Some(News::Waits(age)) => {
                let waiting: usize = self.vbd.shares().iter().map(|share| share.in_flight()).sum();
                let (image, age) = (self.face.describe(), age.as_secs());
                log.say(
                    Level::Warn,
                    &format_args!(
                        "a request has waited {age} s for the image, of {waiting} under way: {image}"
                    ),
                );
            }
            Some(News::Over(age)) => {
                let age = age.as_secs();
                log.say(Level::Info, &format_args!("the image answers again; a request had waited {age} s"));
            }
        }
    }

    /// Returns the counters of all queues since the connect.
    fn counts(&self) -> Vec<Counts> {
        self.vbd.shares().iter().map(|share| share.counters.read()).collect()
    }

    /// Describes for the status the image and how it is served; empty if the disk is not connected.
    fn words(&self) -> String {
        let (Some(figures), [first, ..]) = (self.vbd.figures(), self.vbd.shares()) else {
            return String::new();
        };
        let DiskFigures { sectors, read_only, .. } = figures;
        let read_only = if *read_only { ", read-only" } else { "" };
        format!("{}, {}, {}{read_only}", first.path, self.face.describe(), size(*sectors))
    }
}

impl<P: Platform, T: Transport + 'static> ServedDevice<P, T> for VbdInstance<P> {
    fn back(&self) -> &dyn AnyBack<P, T> {
        &self.vbd
    }
    fn back_mut(&mut self) -> &mut dyn AnyBack<P, T> {
        &mut self.vbd
    }

    fn place(&mut self, device: &Device, xs: &mut Client<T>, live: bool) -> Result<Notes, String> {
        let script = device.get_own::<String, T>(xs, SCRIPT).map_err(|e| e.to_string())?;
        if self.awaits_scripts && script.is_some_and(|script| !script.is_empty()) {
            self.vbd.await_hotplug();
        }
        let mut notes = Notes::new();
        let mut key = |key: &str| device.get_own::<String, T>(xs, key).map_err(|e| e.to_string());
        let is_empty = |name: Option<String>| name.is_none_or(|name| name.is_empty());
        if !live
            && type_is_cdrom(key(DEVICE_TYPE)?.as_ref())
            && is_empty(key(PARAMS)?)
            && is_empty(key(DEVICE_PATH)?)
        {
            notes.push((Level::Info, "an empty drive: its front waits until `params` names an image".into()));
        }
        Ok(notes)
    }

    fn connected(&mut self, begin: Begin, _: &Device, log: &DeviceLog) {
        if begin == Begin::Reattach {
            log_reattached(log, "");
        }
        if let Some(strange) = self.strange.take() {
            log.say(Level::Warn, &strange);
        }
        self.readable = self.face.take_readable();
        let queues = self.vbd.shares().len();
        log.say(Level::Info, &format_args!("connected, {queues} queue(s), {}", self.words()));
    }

    fn own_key_changed(&mut self, _: &Device, log: &DeviceLog) {
        if self.vbd.figures().is_some() {
            let text = "the toolstack names another image; its guest keeps the one that it has until its front connects again";
            log.say(Level::Info, &text);
        }
    }

    fn closed(&mut self, _: &DeviceId, _: &DeviceLog) {
        self.readable.clear();
        self.overdue = Overdue::default();
    }

    fn detach(&mut self, p: &P) -> Drained {
        self.vbd.detach(p, &mut ())
    }

    fn hand_out_queues(&mut self) -> Vec<Box<dyn ServedQueue<P>>> {
        let mut readable = std::mem::take(&mut self.readable).into_iter();
        let joined = self.vbd.hand_out_queues().into_iter().enumerate().map(|(number, queue)| {
            let readable = readable.next().flatten();
            Box::new(VbdQueue { queue, readable, number }) as Box<dyn ServedQueue<P>>
        });
        joined.collect()
    }

    fn take_back_queues(&mut self, queues: Vec<Box<dyn ServedQueue<P>>>) {
        let mut back = Vec::new();
        for queue in queues {
            // All queues of this device are made by this type, so the cast succeeds.
            let Ok(queue) = (queue as Box<dyn Any>).downcast::<VbdQueue<P>>() else { continue };
            let VbdQueue { queue, readable, .. } = *queue;
            back.push(queue);
            self.readable.push(readable);
        }
        self.vbd.take_back(back);
    }

    fn figures(&self) -> Figures {
        let (shares, all) = (self.vbd.shares(), self.counts());
        let sum = |of: fn(&Counts) -> u64| all.iter().map(of).sum::<u64>();
        let operation = |name, requests, bytes, of: fn(&Latencies) -> &Latency| {
            let latency = shares.iter().map(|share| of(&share.latencies).read()).sum();
            Operation { name, requests, bytes, latency }
        };
        let gauge = |of: fn(&QueueShare) -> usize| shares.iter().map(|share| of(share) as u64).sum::<u64>();
        Figures {
            description: self.words(),
            counters: vec![
                ("refused", sum(|c| c.refused)),
                ("unsupported", sum(|c| c.unsupported)),
                ("failed", sum(|c| c.failed)),
                ("redone", sum(|c| c.redone)),
                ("overflows", shares.iter().map(|share| share.overflows()).sum()),
            ],
            gauges: vec![
                ("queues", shares.len() as u64),
                ("in_flight", gauge(QueueShare::in_flight)),
                ("kept_pages", gauge(QueueShare::kept_pages)),
                (FLUSH_FAILED, self.vbd.flush_failed().into()),
                (OLDEST_NS, self.oldest().map_or(0, |age| age.as_nanos() as u64)),
            ],
            operations: vec![
                operation("read", sum(|c| c.reads), sum(|c| c.bytes_read), |l| &l.reads),
                operation("write", sum(|c| c.writes), sum(|c| c.bytes_written), |l| &l.writes),
                operation("flush", sum(|c| c.flushes), 0, |l| &l.flushes),
                operation("discard", sum(|c| c.discards), 0, |l| &l.discards),
            ],
        }
    }
    fn backing(&mut self) -> Option<&mut dyn DeviceBacking<P, T>> {
        Some(self)
    }

    fn periodic_check(&mut self) -> Option<&mut dyn PeriodicCheck<T>> {
        Some(self)
    }
}

impl<P: Platform, T: Transport + 'static> DeviceBacking<P, T> for VbdInstance<P> {
    fn try_ahead(&mut self, bus: &mut StoreBus<'_, T>) -> Result<(Trial, bool), DeviceError> {
        let trial = match self.vbd.try_image(bus)? {
            None => Trial::Nothing,
            Some(Tried::Opened { strange }) => Trial::There(strange),
            Some(Tried::Busy(who)) => Trial::Busy(who),
            Some(Tried::Failed(why)) => Trial::Missing(why),
        };
        // A hotplug script may replace the image that `params` names.
        let script = bus.own_text(SCRIPT)?.is_some_and(|script| !script.is_empty());
        let ran = bus.own_text(HOTPLUG_STATUS)?.as_deref() == Some("connected");
        let is_early = self.awaits_scripts && script && !ran;
        self.strange = match &trial {
            Trial::There(strange) if is_early => strange.clone(),
            _ => None,
        };
        Ok((trial, is_early))
    }

    fn under_way(&mut self, p: &P) -> Option<Duration> {
        (self.vbd.under_way(p) > 0).then_some(LAST_REQUESTS)
    }

    fn give_up(&mut self) -> bool {
        self.vbd.give_up_image()
    }
}

impl<P: Platform, T: Transport + 'static> PeriodicCheck<T> for VbdInstance<P> {
    fn check(&mut self, bus: &mut StoreBus<'_, T>, log: &DeviceLog) -> Result<(), DeviceError> {
        self.say_overdue(log);
        let sectors = |vbd: &BackVbd<P>| vbd.figures().map_or(0, |figures| figures.sectors);
        let before = sectors(&self.vbd);
        if self.vbd.check_length(bus)? {
            let now = sectors(&self.vbd);
            let (level, what) = match now < before {
                true => (
                    Level::Warn,
                    ": what its guest has beyond that is lost; stop the guest, make the image as long as it was, and check its \
                     file systems",
                ),
                false => (Level::Info, ""),
            };
            let (before, now) = (size(before), size(now));
            log.say(level, &format_args!("the image's size has changed from {before} to {now}{what}"));
        }
        Ok(())
    }
}

/// Formats the size of a disk, such as `64 MiB` or `700 KiB`.
fn size(sectors: u64) -> String {
    let kib = sectors / 2;
    match kib {
        kib if kib >= 1 << 20 && kib.is_multiple_of(1 << 20) => format!("{} GiB", kib >> 20),
        kib if kib >= 1 << 10 && kib.is_multiple_of(1 << 10) => format!("{} MiB", kib >> 10),
        kib => format!("{kib} KiB"),
    }
}
