//! One device that is no vif, a disk, between two readings of its backend's status.
//!
//! ```text
//!   operations (requests, bytes, sum of latencies), now minus before, over the seconds between --> rates, mean latency, mean depth
//! ```
//! The mean depth is the time that requests took over the time that passed: what a request waited
//! is counted when it is answered, so that of a disk that hangs only two gauges tell: `in_flight`
//! says how many wait, and `oldest_ns` how long the first of them has. A counter that fell, or
//! another process behind the same socket, means that counting restarted: then there is no rate
//! until the reading after.

use pregrant_host::drivers::BackStatus;
use pregrant_host::drivers::status::{DeviceStatus, OperationStatus};
use serde::Serialize;
use std::collections::BTreeMap;

/// The figures that a line of `--json`, and of the table, has.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Load {
    pub domain: u16,
    pub daemon: String,
    pub pid: u32,
    /// The device, as its backend reports it.
    #[serde(flatten)]
    pub device: DeviceStatus,
    /// The time between the two readings; null if there is only one.
    pub seconds: Option<f64>,
    /// Requests per second, of all operations together.
    pub requests_per_s: Option<f64>,
    /// The mean latency of all requests, in seconds.
    pub latency_s: Option<f64>,
    /// The mean number of requests in flight.
    pub depth: Option<f64>,
    pub rates: BTreeMap<String, Rate>,
}

/// The rate of requests of one kind.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Rate {
    pub requests_per_s: f64,
    pub bytes_per_s: f64,
    /// The mean latency in seconds; null if no request was answered.
    pub latency_s: Option<f64>,
}

/// The increase of an operation's counters.
#[derive(Clone, Copy, Default)]
struct Grown {
    requests: u64,
    bytes: u64,
    /// Number of operations that were answered, including failed ones.
    answered: u64,
    took_ns: u64,
}

impl Grown {
    fn since(now: &OperationStatus, before: &OperationStatus) -> Option<Self> {
        let answered =
            |operation: &OperationStatus| operation.latency.iter().map(|b| b.requests).sum::<u64>();
        Some(Self {
            requests: now.requests.checked_sub(before.requests)?,
            bytes: now.bytes.checked_sub(before.bytes)?,
            answered: answered(now).checked_sub(answered(before))?,
            took_ns: now.latency_sum_ns.checked_sub(before.latency_sum_ns)?,
        })
    }

    fn plus(self, more: Self) -> Self {
        Self {
            requests: self.requests + more.requests,
            bytes: self.bytes + more.bytes,
            answered: self.answered + more.answered,
            took_ns: self.took_ns + more.took_ns,
        }
    }

    fn latency_s(self) -> Option<f64> {
        (self.answered > 0).then(|| self.took_ns as f64 / self.answered as f64 / 1e9)
    }
}

impl Load {
    fn new(back: &BackStatus, device: &DeviceStatus) -> Self {
        Self {
            domain: back.domain,
            daemon: back.daemon.clone(),
            pid: back.pid,
            device: device.clone(),
            seconds: None,
            requests_per_s: None,
            latency_s: None,
            depth: None,
            rates: BTreeMap::new(),
        }
    }

    fn compare(&mut self, before: &DeviceStatus, seconds: f64) {
        let grown = |(name, now): (&String, &OperationStatus)| {
            let none = OperationStatus::default();
            let grown = Grown::since(now, before.operations.get(name).unwrap_or(&none))?;
            Some((name.clone(), grown))
        };
        let Some(grown) = self.device.operations.iter().map(grown).collect::<Option<Vec<_>>>() else {
            return;
        };
        let all = grown.iter().fold(Grown::default(), |all, (_, one)| all.plus(*one));
        self.seconds = Some(seconds);
        self.requests_per_s = Some(all.requests as f64 / seconds);
        self.latency_s = all.latency_s();
        self.depth = Some(all.took_ns as f64 / 1e9 / seconds);
        let rate = |grown: Grown| Rate {
            requests_per_s: grown.requests as f64 / seconds,
            bytes_per_s: grown.bytes as f64 / seconds,
            latency_s: grown.latency_s(),
        };
        self.rates = grown.into_iter().map(|(name, grown)| (name, rate(grown))).collect();
    }

    /// Bytes per second of one operation; None: there is no such operation, or no earlier reading.
    pub fn bytes_per_s(&self, operation: &str) -> Option<f64> {
        self.rates.get(operation).map(|rate| rate.bytes_per_s)
    }
}

/// Returns all devices of a reading that have requests, with rates since the reading before.
pub fn loads(before: &[BackStatus], now: &[BackStatus]) -> Vec<Load> {
    let mut loads = Vec::new();
    for back in now {
        let old = before
            .iter()
            .find(|old| (old.domain, &old.daemon, old.pid) == (back.domain, &back.daemon, back.pid));
        let seconds = old.map_or(0.0, |old| back.at_ns.saturating_sub(old.at_ns) as f64 / 1e9);
        for device in &back.devices {
            let mut load = Load::new(back, device);
            let same = |d: &&DeviceStatus| {
                (&d.class, d.front, d.handle) == (&device.class, device.front, device.handle)
            };
            if let Some(old) = old.and_then(|old| old.devices.iter().find(same)).filter(|_| seconds > 0.0) {
                load.compare(old, seconds);
            }
            loads.push(load);
        }
    }
    loads
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn rates_latency_and_depth_are_of_the_time_between() {
        let before = BackStatus { devices: vec![sample::disk()], ..sample::status() };
        let mut now = before.clone();
        now.at_ns += 2_000_000_000;
        let read = now.devices[0].operations.get_mut("read").unwrap();
        // 1000 reads of 4 KiB that took 3 ms each: 3 s in 2 s.
        read.requests += 1000;
        read.bytes += 4_096_000;
        read.latency_sum_ns += 3_000_000_000;
        read.latency[5].requests += 1000;
        let one = std::slice::from_ref;
        let loads = loads(one(&before), one(&now));
        let load = &loads[0];
        assert_eq!((load.seconds, load.requests_per_s), (Some(2.0), Some(500.0)));
        assert_eq!((load.latency_s, load.depth), (Some(0.003), Some(1.5)));
        assert_eq!((load.bytes_per_s("read"), load.bytes_per_s("write")), (Some(2_048_000.0), Some(0.0)));
        assert_eq!(load.rates["write"].latency_s, None, "none was answered");
        let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(load).unwrap()).unwrap();
        assert_eq!(
            (&json["class"], &json["handle"], &json["gauges"]["in_flight"]),
            (&"vbd".into(), &51712.into(), &3.into())
        );

        let none = |before: &BackStatus, now: &BackStatus| {
            let load = &super::loads(one(before), one(now))[0];
            load.seconds.is_none() && load.requests_per_s.is_none() && load.rates.is_empty()
        };
        assert!(none(&now, &before), "a counter fell");
        now.pid += 1;
        assert!(none(&before, &now), "another process");
    }
}
