use super::*;
use crate::wire::netif_ctrl::CtrlStatus;
use alloc::collections::{BTreeMap, BTreeSet};
use proptest::prelude::*;

const PAGES: usize = 40;
const PLACES: usize = 16;

/// A front's cache with a platform and a back in the hands of the test.
struct World {
    cache: GrefCache,
    /// Grants that exist, each with its page.
    standing: BTreeMap<u32, usize>,
    next_ref: u32,
    /// Grants that the platform reports as in use.
    in_use: BTreeSet<u32>,
    /// The platform cannot grant more pages.
    full: bool,
    /// Grants that were announced to the back, which has not said that it unmapped them.
    announced: BTreeSet<u32>,
    /// Pages that the back has mapped according to the cache, with their grants.
    has: BTreeMap<usize, u32>,
    /// Pages that were looked up and not found, and are to be unmapped.
    missed: BTreeSet<usize>,
    /// Index and grant reference of the pages that frames in flight use.
    in_flight: Vec<(u32, u32)>,
    request: Option<(Ask, Vec<GrefEntry>)>,
}

impl World {
    fn new(capacity: usize) -> Self {
        let mut cache = GrefCache::new(PAGES, PLACES).expect("memory");
        cache.begin(capacity);
        Self {
            cache,
            standing: BTreeMap::new(),
            next_ref: 8,
            in_use: BTreeSet::new(),
            full: false,
            announced: BTreeSet::new(),
            has: BTreeMap::new(),
            missed: BTreeSet::new(),
            in_flight: Vec::new(),
            request: None,
        }
    }

    /// Sends a frame in `page`. Returns true if it went by reference.
    fn frame(&mut self, page: usize) -> bool {
        let Some((place, gref)) = self.cache.lookup(page) else {
            if self.has.contains_key(&page) {
                self.missed.insert(page);
            }
            return false;
        };
        assert_eq!(self.has.get(&page), Some(&gref.0), "a hit that the back does not have");
        assert_eq!(self.standing.get(&gref.0), Some(&page));
        self.cache.sent(place);
        self.in_flight.push((place, gref.0));
        true
    }

    fn answer(&mut self, k: usize) {
        if !self.in_flight.is_empty() {
            let (place, _) = self.in_flight.swap_remove(k % self.in_flight.len());
            self.cache.answered(place);
        }
    }

    fn ask(&mut self) {
        let Self { cache, standing, next_ref, in_use, full, announced, in_flight, .. } = self;
        let mut list = Vec::new();
        let mut granted = Vec::new();
        let mut ended = Vec::new();
        let asked = cache.question(
            &mut list,
            |page| {
                (!*full).then(|| {
                    *next_ref += 1;
                    granted.push((*next_ref, page));
                    GrantRef(*next_ref)
                })
            },
            |gref| {
                assert!(!announced.contains(&gref.0) && in_flight.iter().all(|(_, r)| *r != gref.0));
                let free = !in_use.contains(&gref.0);
                ended.extend(free.then_some(gref.0));
                free
            },
        );
        ended.iter().for_each(|gref| assert!(standing.remove(gref).is_some()));
        for (gref, page) in granted {
            assert!(!standing.values().any(|had| *had == page), "a page with two grants");
            standing.insert(gref, page);
        }
        let Some(asked) = asked else { return };
        assert!(self.request.is_none() && (1..=ADDS_AT_ONCE).contains(&list.len()));
        let refs: BTreeSet<u32> = list.iter().map(|entry| entry.gref).collect();
        assert_eq!(refs.len(), list.len(), "listed twice");
        match asked {
            Ask::Add => self.announced.extend(refs),
            Ask::Del => {
                assert!(
                    self.in_flight.iter().all(|(_, gref)| !refs.contains(gref)),
                    "in flight, and taken back"
                );
                self.has.retain(|_, gref| !refs.contains(gref));
                self.missed.retain(|page| self.has.contains_key(page));
                assert!(self.missed.is_empty(), "missed, and not on its way out");
            }
        }
        self.request = Some((asked, list));
    }

    /// Plays the back's answer: SUCCESS or a failure, with a status for each entry of a DEL. The
    /// statuses of an ADD stay as they are.
    fn reply(&mut self, good: bool, status: impl Fn(usize) -> u16) {
        let adds = matches!(self.request, Some((Ask::Add, _)));
        self.reply_in_part(good, |k| if adds { 0 } else { status(k) });
    }

    /// Like `reply`, with a status for each entry of an ADD, too.
    fn reply_in_part(&mut self, good: bool, status: impl Fn(usize) -> u16) {
        let request = self.request.take();
        let list = request.as_ref().map_or(&[][..], |(_, list)| list);
        let statuses: Vec<u16> = (0..list.len()).map(status).collect();
        let data = match &request {
            Some((Ask::Del, _)) => statuses.iter().filter(|status| **status == 0).count(),
            _ => 0,
        };
        let word = if good { CtrlStatus::Success } else { CtrlStatus::InvalidParameter };
        let answer = CtrlResponse { status: word.raw(), data: data as u32, ..CtrlResponse::default() };
        for (entry, status) in list.iter().zip(&statuses) {
            let page = self.standing[&entry.gref];
            match request.as_ref().map(|(asked, _)| *asked) {
                Some(Ask::Add) if good && *status == 0 => _ = self.has.insert(page, entry.gref),
                Some(Ask::Add) => _ = self.announced.remove(&entry.gref),
                _ if good && *status == 0 => _ = self.announced.remove(&entry.gref),
                _ => _ = self.has.insert(page, entry.gref),
            }
        }
        let Self { cache, standing, in_use, announced, in_flight, .. } = self;
        let unasked = cache.stats().unasked;
        cache.take_answer(answer, &statuses, |gref| {
            assert!(!announced.contains(&gref.0), "the back may have it mapped");
            assert!(in_flight.iter().all(|(_, r)| *r != gref.0), "a frame is in it");
            let free = !in_use.contains(&gref.0);
            assert!(!free || standing.remove(&gref.0).is_some(), "ended twice");
            free
        });
        assert_eq!(cache.stats().unasked, unasked + u64::from(request.is_none()));
    }

    fn disconnect(&mut self) {
        let Self { cache, standing, in_use, .. } = self;
        cache.disconnect(|gref| {
            let free = !in_use.contains(&gref.0);
            assert!(!free || standing.remove(&gref.0).is_some(), "ended twice");
            free
        });
        self.announced.clear();
        self.has.clear();
        self.missed.clear();
        self.in_flight.clear();
        self.request = None;
    }

    /// Plays another back that takes over the rings, and has none of the pages mapped.
    fn renew(&mut self) {
        self.cache.renew();
        self.announced.clear();
        self.has.clear();
        self.missed.clear();
        self.request = None;
    }

    fn check(&self) {
        assert_eq!(self.cache.grants(), self.standing.len(), "a grant is lost");
        assert!(self.cache.added() <= self.has.len());
        assert!(self.standing.len() <= PLACES);
        for page in 0..PAGES {
            let gref = self.standing.iter().find(|(_, had)| **had == page).map(|(gref, _)| *gref);
            let used = self.in_flight.iter().any(|(_, r)| Some(*r) == gref);
            assert_eq!(self.cache.is_in_flight(page), used, "page {page}");
        }
    }

    /// Plays a back that does what it is asked, until there is nothing to ask.
    fn settle(&mut self) {
        for _ in 0..8 {
            self.ask();
            if self.request.is_some() {
                self.reply(true, |_| 0);
            }
        }
    }
}

#[test]
fn pages_come_at_first_sight_and_make_way_when_they_are_not_used() {
    let mut world = World::new(4);
    assert!((0..4).all(|page| !world.frame(page)), "copied until the back has them");
    world.settle();
    assert!((0..4).all(|page| world.frame(page)));
    assert!(!world.frame(9), "no place");
    world.settle();
    assert_eq!(world.cache.stats().evictions, 0, "a frame of each is in flight");
    (0..4).for_each(|_| world.answer(0));
    assert!(world.frame(0) && world.frame(1) && world.frame(2), "3 is not used for long");
    (0..3).for_each(|_| world.answer(0));
    (0..4).for_each(|_| assert!(!world.frame(9)));
    world.settle();
    assert!(!world.frame(9), "there is a place now");
    world.settle();
    assert!(world.frame(9) && !world.frame(PAGES) && !world.frame(usize::MAX));
    let stats = world.cache.stats();
    assert_eq!((stats.dels, stats.adds, stats.refused, stats.in_use), (stats.evictions, 5, 0, 0));
    world.check();
}

#[test]
fn an_add_that_is_refused_shows_how_many_the_back_takes() {
    for takes in [0, 1, 5, 11, 16] {
        let mut world = World::new(PLACES);
        for round in 0..40 {
            (0..PLACES).for_each(|page| _ = world.frame(page));
            (0..PLACES).for_each(|_| world.answer(0));
            world.ask();
            let Some((Ask::Add, list)) = &world.request else { continue };
            let good = world.has.len() + list.len() <= takes;
            world.reply(good, |_| round);
            world.check();
        }
        assert_eq!((world.has.len(), world.cache.capacity()), (takes, takes));
        assert_eq!(world.cache.added(), takes);
        assert!(takes == 0 || world.frame(*world.has.keys().next().expect("a page")));
    }
}

/// Grants that are in use, or that the back does not release, stay; each uses up a place, for the
/// next back too.
#[test]
fn what_the_back_keeps_is_never_ended_and_never_asked_for_without_end() {
    let mut world = World::new(4);
    (0..4).for_each(|page| _ = world.frame(page));
    world.settle();
    for round in 0..40 {
        (0..8).for_each(|k| _ = world.frame(10 + (round * 8 + k) % 30));
        world.ask();
        if world.request.is_some() {
            // 7 is no valid status; a hostile back may write anything to the list.
            world.reply(round % 2 == 0, |_| 7);
        }
        world.check();
    }
    assert_eq!(world.cache.stats().refused, 4 * u64::from(DELS_MAX));
    assert_eq!((world.cache.stats().dels, world.cache.added()), (0, 4), "they are used where they are");
    assert!((0..4).all(|page| world.frame(page)));
    world.in_use.extend(world.standing.keys());
    world.disconnect();
    assert_eq!((world.cache.grants(), world.cache.added()), (4, 0));
    world.cache.begin(6);
    (0..6).for_each(|page| assert!(!world.frame(page)));
    world.settle();
    assert_eq!(world.has.len(), 2, "two places are left");
    world.in_use.clear();
    world.settle();
    assert_eq!(world.cache.grants(), 2);
    world.check();
}

#[test]
fn another_back_gets_the_same_pages_by_the_same_references() {
    for (takes, frames_are_out) in [(PLACES, false), (PLACES, true), (5, false), (5, true), (0, true)] {
        let mut world = World::new(PLACES);
        (0..PLACES).for_each(|page| _ = world.frame(page));
        world.settle();
        (0..PLACES).for_each(|page| assert!(world.frame(page)));
        if !frames_are_out {
            (0..PLACES).for_each(|_| world.answer(0));
        }
        let granted = world.standing.clone();
        world.renew();
        assert!((0..PLACES).all(|page| !world.frame(page)), "it does not have them");
        world.cache.begin(takes);
        world.settle();
        world.check();
        assert_eq!((world.has.len(), world.cache.added()), (takes, takes));
        assert!(world.has.iter().all(|(page, gref)| granted[gref] == *page));
        // Pages that it has no room for are given up, once their frames are answered.
        let left = if frames_are_out { PLACES } else { takes };
        assert_eq!(world.standing.len(), left);
        (0..PLACES).for_each(|_| world.answer(0));
        world.settle();
        assert_eq!(world.standing.len(), takes.max(usize::from(takes == 0) * left));
    }
}

#[test]
fn an_add_of_which_a_part_failed_counts_by_its_entries() {
    let mut world = World::new(PLACES);
    (0..PLACES).for_each(|page| _ = world.frame(page));
    world.ask();
    world.reply_in_part(true, |k| if k < 6 { 0 } else { 2 });
    world.check();
    assert_eq!((world.has.len(), world.cache.added(), world.cache.capacity()), (6, 6, 6));
    assert_eq!(world.cache.stats().refused, PLACES as u64 - 6);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Frame(usize),
    Answer(usize),
    Ask,
    /// The back answers with SUCCESS (true) or a failure; the number is the seed of the statuses.
    Reply(bool, u16),
    /// The platform reports this grant as in use, or as free.
    Use(u32, bool),
    Full(bool),
    Disconnect(usize),
    Renew(usize),
    /// The back answers with SUCCESS, although this number of entries failed.
    Part(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..PAGES + 2).prop_map(Step::Frame),
        // Some are used more often.
        12 => (0..8usize).prop_map(Step::Frame),
        12 => any::<usize>().prop_map(Step::Answer),
        8 => Just(Step::Ask),
        8 => (prop::bool::weighted(0.8), prop_oneof![3 => Just(0), 1 => any::<u16>()]).prop_map(|(good, s)| Step::Reply(good, s)),
        1 => (8u32..200, any::<bool>()).prop_map(|(gref, on)| Step::Use(gref, on)),
        1 => any::<bool>().prop_map(Step::Full),
        1 => (0..PLACES + 4).prop_map(Step::Disconnect),
        1 => (0..PLACES + 4).prop_map(Step::Renew),
        1 => (1..4usize).prop_map(Step::Part),
    ]
}

proptest! {
    /// This holds whatever frames come, and whatever the back answers and when.
    #[test]
    fn a_grant_stands_for_as_long_as_the_back_may_have_its_page(
        capacity in 0..PLACES + 4, steps in proptest::collection::vec(step(), 1..600),
    ) {
        let mut world = World::new(capacity);
        for step in steps {
            match step {
                Step::Frame(page) => _ = world.frame(page),
                Step::Answer(k) => world.answer(k),
                Step::Ask => world.ask(),
                Step::Reply(good, seed) => world.reply(good, |k| if k % 3 == 0 { seed } else { 0 }),
                Step::Use(gref, true) => _ = world.in_use.insert(gref),
                Step::Use(gref, false) => _ = world.in_use.remove(&gref),
                Step::Full(full) => world.full = full,
                Step::Disconnect(capacity) => {
                    world.disconnect();
                    world.cache.begin(capacity);
                }
                Step::Renew(capacity) => {
                    world.renew();
                    world.check();
                    world.cache.begin(capacity);
                }
                Step::Part(every) => world.reply_in_part(true, |k| if k % every == 0 { 2 } else { 0 }),
            }
            world.check();
        }
        world.in_use.clear();
        world.disconnect();
        prop_assert!(world.standing.is_empty(), "a grant is left");
    }

    /// With an honest back all pages that fit get into the table, and are found there.
    #[test]
    fn a_working_set_that_fits_is_hit(capacity in 1..=PLACES, before in proptest::collection::vec(0..PAGES, 0..200)) {
        let mut world = World::new(capacity);
        for page in before {
            world.frame(page);
            world.answer(0);
            world.ask();
            if world.request.is_some() {
                world.reply(true, |_| 0);
            }
        }
        // This takes two windows and more, because the frames before may have made the cache copy.
        for k in 0..5000 {
            world.frame(k % capacity);
            world.answer(0);
            world.ask();
            if world.request.is_some() {
                world.reply(true, |_| 0);
            }
        }
        prop_assert!((0..capacity).all(|page| world.frame(page)));
        prop_assert_eq!(world.cache.mode(), CacheMode::Caching);
        world.check();
    }
}
