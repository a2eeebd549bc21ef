//! The ports behind a crowd's vifs: one for each queue, which checks the numbers of frames, or
//! sends them back.

use crate::process::mark::is_mark;
use crate::process::ports::Echo;
use crate::process::report::Came;
use crate::process::signals::locked;
use pregrant::platform::Clock;
use pregrant::port::{Arena, Burst, FramePort, Offloads};
use pregrant::xenbus::DeviceId;
use pregrant_host::MonotonicClock;
use pregrant_host::drivers::net::port_provider::Ports;
use pregrant_host::ports::checking_sink::{Check, CheckingSink, SinkCounters};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The state that the ports of all guests share with the control thread.
#[derive(Default)]
pub struct Hall {
    echoes: AtomicBool,
    /// For each guest, the counters of its sinks, one for each queue.
    sinks: Mutex<BTreeMap<u16, Vec<Arc<SinkCounters>>>>,
}

impl Hall {
    /// Sets whether frames are sent back from now on.
    pub fn set_echoes(&self, echoes: bool) {
        self.echoes.store(echoes, Ordering::Relaxed);
    }

    /// Returns the counts of each guest's frames.
    pub fn came(&self) -> Vec<Came> {
        locked(&self.sinks).values().map(|queues| Came::of(queues.iter().map(|queue| queue.read()))).collect()
    }

    /// Creates the ports of a guest's vif that has connected with this many queues.
    pub fn ports(self: &Arc<Self>, id: &DeviceId, queues: usize) -> Ports {
        let mut all = locked(&self.sinks);
        let sinks = all.entry(id.front.0).or_default();
        sinks.clear();
        let port = || {
            let sink = CheckingSink::new(Check::Number);
            sinks.push(sink.counters());
            Box::new(Port { sink, back: None, hall: Arc::clone(self) }) as Box<dyn FramePort>
        };
        std::iter::repeat_with(port).take(queues).collect()
    }
}

struct Port {
    sink: CheckingSink,
    /// The frames that are sent back. Most ports never have any, so they are in a box.
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
