//! What stands behind a crowd's vifs: a port for each queue that checks the numbers of what comes, or sends it back.

use super::order::Came;
use crate::process::mark::is_mark;
use crate::process::ports::Echo;
use crate::process::signals::locked;
use pregrant::platform::Clock;
use pregrant::port::{Arena, Burst, FramePort, Offloads};
use pregrant::xenbus::DeviceId;
use pregrant_host::MonotonicClock;
use pregrant_host::drivers::{HotplugConfig, PortProvider};
use pregrant_host::ports::sink::{Check, Sink, SinkCounters};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What ports and the control thread share.
#[derive(Default)]
pub struct Hall {
    echoes: AtomicBool,
    /// By guest; one for each queue.
    sinks: Mutex<BTreeMap<u16, Vec<Arc<SinkCounters>>>>,
}

impl Hall {
    /// Whether frames go back from now on.
    pub fn set_echoes(&self, echoes: bool) {
        self.echoes.store(echoes, Ordering::Relaxed);
    }

    /// What came of each guest.
    pub fn came(&self) -> Vec<Came> {
        let sinks = locked(&self.sinks);
        let of = |(domid, queues): (&u16, &Vec<Arc<SinkCounters>>)| {
            let mut came = Came { domid: *domid, ..Came::default() };
            for r in queues.iter().map(|queue| queue.read()) {
                came.frames += r.frames;
                came.next += r.next;
                came.missing += r.lost;
                came.wrong += r.duplicated + r.reordered;
                came.damaged += r.damaged + r.foreign;
            }
            came
        };
        sinks.iter().map(of).collect()
    }
}

/// Makes the ports.
pub struct Ports(pub Arc<Hall>);

impl PortProvider for Ports {
    fn reserve(&mut self, _: &DeviceId, _: &HotplugConfig, _: usize, _: Offloads) {}
    fn connected(
        &mut self,
        id: &DeviceId,
        queues: usize,
        _: Offloads,
    ) -> Result<Vec<Box<dyn FramePort>>, String> {
        let mut all = locked(&self.0.sinks);
        let sinks = all.entry(id.front.0).or_default();
        sinks.clear();
        let port = || {
            let sink = Sink::new(Check::Number);
            sinks.push(sink.counters());
            Box::new(Port { sink, back: None, hall: Arc::clone(&self.0) }) as Box<dyn FramePort>
        };
        Ok(std::iter::repeat_with(port).take(queues).collect())
    }
    fn readable(&mut self, _: &DeviceId) -> Vec<OwnedFd> {
        Vec::new()
    }
    fn link(&mut self, _: &DeviceId, _: bool) -> Result<(), String> {
        Ok(())
    }
}

/// One queue's.
struct Port {
    sink: Sink,
    /// Most ports never have any.
    back: Option<Box<Echo>>,
    hall: Arc<Hall>,
}

impl FramePort for Port {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        if is_mark(frames) {
            return 1;
        }
        if !self.hall.echoes.load(Ordering::Relaxed) {
            self.sink.take(frames);
            return frames.frames.len();
        }
        let (back, now_ns) = (self.back.get_or_insert_default(), MonotonicClock.now_ns());
        frames.iter().take_while(|(frame, offload)| back.take(frame, *offload, now_ns)).count()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        self.back.as_mut().map_or(0, |back| back.give(into))
    }
}
