//! The guests with disks of one process. Each guest has a thread, and the main thread handles
//! commands and sleeps while requests move.

use super::disk_guest::{Count, DiskGuest, Hall};
use super::disks_command::{DiskSetup, DisksCommand, DisksSeen, Load, Rested};
use crate::cpu_time;
use crate::process::Result;
use crate::process::report::{Latencies, Report, Spent};
use pregrant::DomId;
use pregrant::platform::Clock;
use pregrant_host::MonotonicClock;
use pregrant_host::counters::{Counters, Totals};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};

enum Task {
    Run(Load),
    Verify,
}

/// A thread's message: the guest is connected, or a task has ended.
enum Said {
    There(Totals),
    Rested(Box<Rested>),
    Failed(String),
}

/// A guest, as this thread sees it. Its thread ends when there are no more tasks for it.
struct Guest {
    tasks: Sender<Task>,
    said: Receiver<Said>,
    count: Arc<Count>,
    ops: Totals,
}

#[derive(Default)]
pub struct Guests {
    hall: Arc<Hall>,
    all: Vec<Guest>,
}

impl Guests {
    pub fn obey(&mut self, broker: &Path, command: DisksCommand) -> Result<Report> {
        match command {
            DisksCommand::Gather { fronts, setup } => self.gather(broker, &fronts, setup),
            DisksCommand::Begin(load) => self.begin(load),
            DisksCommand::Check => Ok(Report::DisksSeen(self.check())),
            DisksCommand::Rest => self.rest(),
            DisksCommand::Verify => self.verify(),
        }
    }

    fn gather(&mut self, broker: &Path, fronts: &[u16], setup: DiskSetup) -> Result<Report> {
        // All begin before one is waited for: their handshakes run beside each other.
        let begin = |front: &u16| {
            let (tasks, commands) = channel();
            let (send_report, said) = channel();
            let (count, hall) = (Arc::<Count>::default(), Arc::clone(&self.hall));
            let (broker, front, counts) = (broker.to_path_buf(), DomId(*front), Arc::clone(&count));
            let name = format!("guest {}", front.0);
            let play = move || {
                let mut disk_guest = match DiskGuest::take(&broker, front, &setup) {
                    Ok(disk_guest) => disk_guest,
                    Err(e) => return drop(send_report.send(Said::Failed(e.to_string()))),
                };
                // no one listens: the process ends
                let _ = send_report.send(Said::There(disk_guest.platform().totals()));
                for task in commands {
                    let done = match task {
                        Task::Run(load) => disk_guest.run(&load, &hall, &counts),
                        Task::Verify => disk_guest.verify(),
                    };
                    let said = match done {
                        Ok(rested) => Said::Rested(Box::new(rested)),
                        Err(e) => Said::Failed(e.to_string()),
                    };
                    let _ = send_report.send(said); // the same
                }
            };
            std::thread::Builder::new().name(name).spawn(play)?;
            Ok((tasks, said, count))
        };
        let started: Vec<_> = fronts.iter().map(begin).collect::<Result<_>>()?;
        for (tasks, said, count) in started {
            match said.recv()? {
                Said::There(ops) => self.all.push(Guest { tasks, said, count, ops }),
                Said::Failed(why) => return Err(why.into()),
                Said::Rested(_) => return Err("a guest rested before it had a load".into()),
            }
        }
        Ok(Report::Done)
    }

    fn begin(&mut self, load: Load) -> Result<Report> {
        self.hall.keeps_times.store(false, Ordering::Relaxed);
        self.hall.running.store(true, Ordering::Relaxed);
        for (i, guest) in self.all.iter().enumerate() {
            guest.tasks.send(Task::Run(load.of_guest(i, self.all.len())))?;
        }
        Ok(Report::Done)
    }

    fn check(&self) -> DisksSeen {
        let requests = self.all.iter().map(|guest| guest.count.requests.load(Ordering::Relaxed)).collect();
        let at_ns = MonotonicClock.now_ns();
        self.hall.keeps_times.store(true, Ordering::Relaxed);
        let ops = self.all.iter().fold(Counters::default(), |sum, guest| sum.plus(&guest.ops.read()));
        DisksSeen {
            requests,
            spent: Spent { at_ns, cpu_ns: cpu_time::of_process(), ops, ..Spent::default() },
        }
    }

    fn rest(&mut self) -> Result<Report> {
        self.hall.running.store(false, Ordering::Relaxed);
        self.rested()
    }

    fn verify(&mut self) -> Result<Report> {
        for guest in &self.all {
            guest.tasks.send(Task::Verify)?;
        }
        self.rested()
    }

    /// Adds up the messages of the guests.
    fn rested(&mut self) -> Result<Report> {
        let mut sum = Rested::default();
        let mut buckets = BTreeMap::new();
        for guest in &self.all {
            match guest.said.recv()? {
                Said::Rested(rested) => {
                    sum.failed += rested.failed;
                    sum.damaged += rested.damaged;
                    sum.checked += rested.checked;
                    sum.missed_wakeups += rested.missed_wakeups;
                    sum.latency.most_ns = sum.latency.most_ns.max(rested.latency.most_ns);
                    for (bound, n) in rested.latency.histogram {
                        *buckets.entry(bound).or_default() += n;
                    }
                }
                Said::Failed(why) => return Err(why.into()),
                Said::There(_) => return Err("a guest came twice".into()),
            }
        }
        let most_ns = sum.latency.most_ns;
        sum.latency = Latencies::of_buckets(buckets.into_iter().collect()).with_most(most_ns);
        Ok(Report::Rested(Box::new(sum)))
    }
}
