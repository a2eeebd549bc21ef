//! Which worker a queue goes to.
//!
//! | placement | a queue's worker | as |
//! |---|---|---|
//! | `fixed` | by its guest's number | netback before 2013: a thread for a fixed share of the vifs |
//! | `balanced` | the one that carries least, when it connects and whenever a device comes or goes | |
//! | `own` | one of the device's own, for all of its queues | netback since 2013: a thread a vif |

use crate::choice::named;
use pregrant::xenbus::DeviceId;

named! {
    /// The rule by which a device's queue gets its worker.
    Placement, "a placement" {
        /// The guest's domain id determines the worker.
        Fixed = "fixed",
        /// The queue goes to the worker with the fewest queues.
        #[default]
        Balanced = "balanced",
        /// Each device has a thread of its own.
        Own = "own",
    }
}

/// The load of a worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Carried {
    /// Number of queues of each device.
    pub queues: Vec<(DeviceId, usize)>,
}

impl Carried {
    /// Returns the number of queues of all devices.
    pub fn total(&self) -> usize {
        self.queues.iter().map(|(_, n)| n).sum()
    }

    /// Returns the number of the device's queues that this worker has.
    pub fn of(&self, id: &DeviceId) -> usize {
        self.queues.iter().find(|(of, _)| of == id).map_or(0, |(_, n)| *n)
    }

    /// Adds a queue of this device.
    pub fn add(&mut self, id: DeviceId) {
        match self.queues.iter_mut().find(|(of, _)| *of == id) {
            Some((_, n)) => *n += 1,
            None => self.queues.push((id, 1)),
        }
    }

    /// Removes `nr_queues` queues of this device.
    pub fn remove(&mut self, id: &DeviceId, nr_queues: usize) {
        if let Some((_, n)) = self.queues.iter_mut().find(|(of, _)| of == id) {
            *n = n.saturating_sub(nr_queues);
        }
        self.queues.retain(|(_, n)| *n > 0);
    }
}

/// Returns the worker for one more queue of `id`: among the workers with the fewest queues, one
/// that has the fewest queues of this device.
pub fn least<'a>(workers: impl Iterator<Item = (usize, &'a Carried)>, id: &DeviceId) -> Option<usize> {
    workers.min_by_key(|(at, carried)| (carried.total(), carried.of(id), *at)).map(|(at, _)| at)
}

/// Returns the device, if any, whose queues should move to another worker because that makes the
/// numbers of queues more equal. If there are several such devices, the smallest one is returned.
pub fn uneven(workers: &[Carried]) -> Option<DeviceId> {
    let most = workers.iter().max_by_key(|carried| carried.total())?;
    let fewest = workers.iter().map(Carried::total).min()?;
    let gap = most.total() - fewest;
    let fits = most.queues.iter().filter(|(_, n)| *n < gap);
    fits.min_by_key(|(id, n)| (*n, *id)).map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pregrant::DomId;
    use pregrant::xenbus::Class;

    fn id(front: u16) -> DeviceId {
        DeviceId { class: Class::VIF, front: DomId(front), back: DomId(0), handle: 0 }
    }

    #[test]
    fn a_placement_that_is_written_is_read() {
        for place in Placement::ALL {
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        assert!("x".parse::<Placement>().is_err_and(|e| e.contains("fixed, balanced, own")));
    }

    #[test]
    fn queues_come_to_those_who_carry_least_and_go_where_they_are_too_many() {
        let mut workers = vec![Carried::default(); 2];
        for front in [1, 2, 3] {
            for _ in 0..2 {
                let at = least(workers.iter().enumerate(), &id(front)).unwrap();
                workers[at].add(id(front));
            }
        }
        assert_eq!([workers[0].total(), workers[1].total()], [3, 3]);
        assert!(workers.iter().all(|w| [1, 2, 3].iter().all(|front| w.of(&id(*front)) == 1)), "{workers:?}");
        assert_eq!(uneven(&workers), None);
        // Devices leave the second worker one by one: a difference of one queue is no reason to
        // move.
        workers[1].remove(&id(1), 1);
        assert_eq!(uneven(&workers), None);
        workers[1].remove(&id(2), 1);
        assert_eq!(uneven(&workers), Some(id(1)));
    }
}
