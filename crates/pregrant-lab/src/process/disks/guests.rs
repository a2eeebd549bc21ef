//! The process of the guests: a thread for each, and this one for orders, which sleeps while requests move.

use super::order::{DisksReport, GuestOrder, Load, Rested, Seen, Wish};
use super::seat::{Count, Hall, Seat};
use crate::cpu_time;
use crate::process::order::{Latencies, Order, Report};
use crate::process::{ProcessArgs, Result, next_order, tell};
use pregrant::DomId;
use pregrant::platform::Clock;
use pregrant_host::MonotonicClock;
use pregrant_host::counters::{Counters, Totals};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What a thread is to do.
enum Task {
    Run(Load),
    Verify,
}

/// What a thread says: it is there, or a task is over.
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
struct Guests {
    hall: Arc<Hall>,
    all: Vec<Guest>,
}

/// Carries out orders until there are no more.
pub fn play(args: &ProcessArgs) -> Result<()> {
    let mut guests = Guests::default();
    while let Some(order) = next_order()? {
        let Order::Disks(order) = order else {
            tell(&Report::Failed("that is no order for guests with disks".into()))?;
            continue;
        };
        let done = match order {
            GuestOrder::Gather { fronts, wish } => guests.gather(&args.broker, &fronts, wish),
            GuestOrder::Begin(load) => guests.begin(load),
            GuestOrder::Look => Ok(DisksReport::Seen(guests.look())),
            GuestOrder::Rest => guests.rest(),
            GuestOrder::Verify => guests.verify(),
        };
        tell(&done.map_or_else(|e| Report::Failed(e.to_string()), Report::Disks))?;
    }
    Ok(())
}

impl Guests {
    fn gather(&mut self, broker: &Path, fronts: &[u16], wish: Wish) -> Result<DisksReport> {
        // All begin before one is waited for: their handshakes run beside each other.
        let begin = |front: &u16| {
            let (tasks, orders) = channel();
            let (tell, said) = channel();
            let (count, hall) = (Arc::<Count>::default(), Arc::clone(&self.hall));
            let (broker, front, counts) = (broker.to_path_buf(), DomId(*front), Arc::clone(&count));
            let name = format!("guest {}", front.0);
            let play = move || {
                let mut seat = match Seat::take(&broker, front, &wish) {
                    Ok(seat) => seat,
                    Err(e) => return drop(tell.send(Said::Failed(e.to_string()))),
                };
                let _ = tell.send(Said::There(seat.platform().totals())); // nobody listens: the process ends
                for task in orders {
                    let done = match task {
                        Task::Run(load) => seat.run(&load, &hall, &counts),
                        Task::Verify => seat.verify(),
                    };
                    let said = match done {
                        Ok(rested) => Said::Rested(Box::new(rested)),
                        Err(e) => Said::Failed(e.to_string()),
                    };
                    let _ = tell.send(said); // the same
                }
            };
            std::thread::Builder::new().name(name).spawn(play)?;
            Ok((tasks, said, count))
        };
        let begun: Vec<_> = fronts.iter().map(begin).collect::<Result<_>>()?;
        for (tasks, said, count) in begun {
            match said.recv()? {
                Said::There(ops) => self.all.push(Guest { tasks, said, count, ops }),
                Said::Failed(why) => return Err(why.into()),
                Said::Rested(_) => return Err("a guest rested before it had a load".into()),
            }
        }
        Ok(DisksReport::Done)
    }

    fn begin(&mut self, load: Load) -> Result<DisksReport> {
        self.hall.keeps_times.store(false, Ordering::Relaxed);
        self.hall.running.store(true, Ordering::Relaxed);
        for (i, guest) in self.all.iter().enumerate() {
            guest.tasks.send(Task::Run(load.of_guest(i, self.all.len())))?;
        }
        Ok(DisksReport::Done)
    }

    fn look(&self) -> Seen {
        let requests = self.all.iter().map(|guest| guest.count.requests.load(Ordering::Relaxed)).collect();
        let at_ns = MonotonicClock.now_ns();
        self.hall.keeps_times.store(true, Ordering::Relaxed);
        let ops = self.all.iter().fold(Counters::default(), |sum, guest| sum.plus(&guest.ops.read()));
        Seen { at_ns, requests, cpu_ns: cpu_time::of_process(), ops }
    }

    fn rest(&mut self) -> Result<DisksReport> {
        self.hall.running.store(false, Ordering::Relaxed);
        self.rested()
    }

    fn verify(&mut self) -> Result<DisksReport> {
        for guest in &self.all {
            guest.tasks.send(Task::Verify)?;
        }
        self.rested()
    }

    /// What all of them say, in sum.
    fn rested(&mut self) -> Result<DisksReport> {
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
        sum.latency = Latencies { most_ns, ..Latencies::of_buckets(buckets.into_iter().collect()) };
        Ok(DisksReport::Rested(Box::new(sum)))
    }
}
