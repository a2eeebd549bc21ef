//! Checks which pages each device of a guest may have mapped, for any devices in any order.

use super::{PAGES_PER_GUEST, PageBudget, SPARE, lasting, room, shares};
use proptest::prelude::*;

/// A device in the state that the bound on a guest's pages depends on.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    there: bool,
    connected: bool,
    /// Pages that the device keeps until it closes, of those that it wants to keep.
    least: usize,
    share: usize,
    /// The part of `share` that the device may keep until it closes.
    for_long: usize,
    requested: usize,
}

/// The pages that a device wants when it connects.
#[derive(Clone, Copy, Debug)]
struct Wants {
    rings: usize,
    /// Number of pages for lists and the like.
    lasting: usize,
    kept: usize,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Find,
    /// The backing is checked; the front has not come.
    Check,
    Connect(Wants),
    /// The device keeps as many pages of its share as are allowed.
    Fill,
    Close,
    Remove,
    /// All devices end, and another process takes them over.
    TakeOver,
}

#[derive(Debug)]
struct Guest {
    limit: usize,
    devices: Vec<Device>,
}

impl Guest {
    fn least(&self, but: Option<usize>) -> usize {
        self.devices.iter().enumerate().filter(|(at, _)| Some(*at) != but).map(|(_, d)| d.least).sum()
    }

    fn room(&self, at: usize) -> PageBudget {
        let others = self.devices.iter().enumerate().filter(|(k, d)| *k != at && d.connected);
        let requests: Vec<_> = others.map(|(_, d)| d.requested).collect();
        room(self.limit, self.least(Some(at)), &requests, self.waiting())
    }

    fn waiting(&self) -> usize {
        self.devices.iter().filter(|d| d.there && !d.connected).count()
    }

    fn share(&mut self) {
        let least = self.least(None);
        let waiting = self.waiting();
        let connected: Vec<_> = self.devices.iter_mut().filter(|d| d.connected).collect();
        let requests: Vec<_> = connected.iter().map(|d| d.requested).collect();
        let for_long = lasting(self.limit, least, &requests, waiting);
        let shares = shares(self.limit.saturating_sub(least), &requests).into_iter().zip(for_long);
        connected.into_iter().zip(shares).for_each(|(d, (share, for_long))| {
            (d.share, d.for_long) = (share, for_long);
        });
    }

    fn happens(&mut self, at: usize, event: Event) {
        let before: Vec<_> = self.devices.iter().map(|d| d.share).collect();
        let device = self.devices[at];
        match event {
            Event::Find => self.devices[at].there = true,
            Event::Check => drop(self.room(at)),
            Event::Connect(wants) if device.there && !device.connected => {
                let room = self.room(at);
                if wants.rings > room.limit {
                    assert!(self.least(Some(at)) + wants.rings > self.limit, "refused, and there is room");
                    return;
                }
                let lists = wants.lasting.min(room.lasting.saturating_sub(wants.rings));
                let (least, requested) = (wants.rings + lists, wants.kept);
                self.devices[at] =
                    Device { there: true, connected: true, least, share: 0, for_long: 0, requested };
                self.share();
            }
            Event::Fill if device.connected => {
                let takes = device.share.min(device.for_long).min(device.requested);
                let device = &mut self.devices[at];
                device.least += takes;
                device.share -= takes;
                device.for_long -= takes;
                device.requested -= takes;
            }
            Event::Close if device.connected => {
                self.devices[at] = Device { there: true, ..Device::default() };
                self.share();
            }
            Event::Remove => {
                self.devices[at] = Device::default();
                self.share();
            }
            Event::TakeOver => self.take_over(),
            Event::Connect(_) | Event::Fill | Event::Close => {}
        }
        if matches!(event, Event::Find | Event::Check) {
            let now: Vec<_> = self.devices.iter().map(|d| d.share).collect();
            assert_eq!(now, before, "it changed what others have");
        }
    }

    /// Takes devices over one after another, as the registry does: everything fits again.
    fn take_over(&mut self) {
        let none = vec![Device::default(); self.devices.len()];
        let old = std::mem::replace(&mut self.devices, none);
        for (at, was) in old.iter().enumerate() {
            self.devices[at].there = was.there;
            if was.connected {
                assert!(self.room(at).limit >= was.least, "{old:?}");
                self.devices[at] = Device { share: 0, ..*was };
                self.share();
            }
        }
        self.share();
    }

    fn holds(&self) {
        let all: usize = self.devices.iter().map(|d| d.least + d.share).sum();
        assert!(all <= self.limit, "{self:?}");
        let free = self.limit - all;
        let connected = || self.devices.iter().filter(|d| d.connected);
        for d in connected() {
            assert!(d.share <= d.requested, "{self:?}");
            assert!(d.share > 0 || d.requested == 0 || free == 0, "none, and pages are free: {self:?}");
        }
    }

    /// Checks the shares just after pages were shared out.
    fn is_even(&self) {
        let all: usize = self.devices.iter().map(|d| d.least + d.share).sum();
        let connected = || self.devices.iter().filter(|d| d.connected);
        let most = connected().map(|d| d.share).max().unwrap_or(0);
        for d in connected().filter(|d| d.share < d.requested) {
            assert!(all == self.limit, "{d:?} has not what it requests, and pages are free");
            assert!(d.share + 1 >= most, "{d:?} has less than another that has {most}");
        }
    }
}

fn wants() -> impl Strategy<Value = Wants> {
    let rings = prop_oneof![1..40usize, 1..3000usize];
    (rings, 0..5000usize, prop_oneof![Just(0), 1..8000usize]).prop_map(|(rings, lasting, kept)| Wants {
        rings,
        lasting,
        kept,
    })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => Just(Event::Find),
        2 => Just(Event::Check),
        6 => wants().prop_map(Event::Connect),
        2 => Just(Event::Fill),
        2 => Just(Event::Close),
        1 => Just(Event::Remove),
        1 => Just(Event::TakeOver),
    ]
}

proptest! {
    #[test]
    fn shares_hold_in_any_order(
        limit in prop_oneof![1..200usize, Just(PAGES_PER_GUEST)],
        events in prop::collection::vec((0..20usize, event()), 1..80),
    ) {
        let mut guest = Guest { limit, devices: vec![Device::default(); 20] };
        for (at, event) in events {
            guest.happens(at, event);
            guest.holds();
            if matches!(event, Event::Connect(_) | Event::Close | Event::Remove | Event::TakeOver) {
                guest.share();
                guest.is_even();
                guest.holds();
            }
        }
    }
}

/// However many pages other devices keep, there is room for the rings of one device that is not
/// known yet.
#[test]
fn there_is_room_for_one_that_comes_late() {
    let wants = Wants { rings: 17, lasting: 4096, kept: 6144 };
    let mut guest = Guest { limit: PAGES_PER_GUEST, devices: vec![Device::default(); 32] };
    for at in 0..32 {
        guest.happens(at, Event::Find);
        guest.happens(at, Event::Connect(wants));
        assert!(guest.devices[at].connected, "device {at}");
        guest.happens(at, Event::Fill);
    }
    assert!(guest.least(None) >= PAGES_PER_GUEST - PAGES_PER_GUEST / SPARE - 32);
}

/// While its guest's devices are present, each of them gets its part of the pages that may stay
/// mapped, and a single backend owns all devices.
#[test]
fn devices_that_are_there_have_their_part() {
    let wants = Wants { rings: 8, lasting: 2048, kept: 0 };
    let mut guest = Guest { limit: PAGES_PER_GUEST, devices: vec![Device::default(); 16] };
    (0..16).for_each(|at| guest.happens(at, Event::Find));
    (0..16).for_each(|at| guest.happens(at, Event::Connect(wants)));
    let least: Vec<_> = guest.devices.iter().map(|d| d.least).collect();
    assert!(least.iter().all(|least| *least >= 900), "{least:?}");
}
