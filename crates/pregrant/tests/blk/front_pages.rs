//! When a front grants pages, and how many: as requests need them, up to a limit.
#![cfg(not(miri))]

use crate::world::{GUEST, HOST, Setting, World, figures, pattern};
use pregrant::blk::front::free_pages::{REFUSALS, STEP_PAGES};
use pregrant::blk::front::{Ask, FrontConfig, FrontStep, FrontVbd, NotAsked};
use pregrant::blk::path::PathName;
use pregrant::grants::regions::Granting;
use pregrant::platform::local::LocalDomain;
use pregrant::wire::blkif::Abi;

/// Grants beside those of data: one page of ring.
const RING: usize = 1;

type Front = FrontVbd<LocalDomain>;

fn persistent() -> Setting {
    Setting::of(PathName::Persistent, Abi::X86_64)
}

fn pages(front: &mut Front) -> usize {
    front.queue_mut(0).unwrap().pages()
}

/// Submits reads of `sectors` sectors until one is refused, and returns why; then all are answered.
fn until_refused(world: &mut World, front: &mut Front, sectors: u32) -> (usize, NotAsked) {
    let ask = Ask::Read { sector: 0, sectors };
    let mut asked = 0;
    let why = loop {
        match front.submit(&world.guest, 0, &ask, asked) {
            Ok(()) => asked += 1,
            Err(why) => break why,
        }
    };
    front.publish(&world.guest, 0);
    let mut answered = 0;
    while answered < asked {
        world.poll_back();
        let each = |a: pregrant::blk::front::Answer<'_, LocalDomain>| assert_eq!(a.outcome, Ok(()));
        answered += front.take(&world.guest, 0, each).expect("an honest back") as u64;
    }
    (asked as usize, why)
}

#[test]
fn pages_come_when_a_request_needs_them_and_stay() {
    for (granting, persists) in [(Granting::Standing, true), (Granting::PerFrame, false)] {
        let path = if persists { PathName::Persistent } else { PathName::Copy };
        let Setting { back, front, .. } = Setting::of(path, Abi::X86_64);
        let mut world = World::new(back, figures());
        let mut front = world.front(FrontConfig { granting, ..front });
        // What stands granted, of so many pages.
        let standing = |pages| RING + if persists { pages } else { 0 };
        assert_eq!(pages(&mut front), STEP_PAGES, "an idle disk's");
        assert_eq!(world.xen.counts().grants, standing(STEP_PAGES));
        for (nr_pages, has) in [(1, 16), (11, 16), (15, 16), (16, 32), (40, 48), (20, 48), (64, 80), (64, 80)]
        {
            let data = pattern(nr_pages * 4096, nr_pages as u64);
            let write = Ask::Write { sector: 8, bytes: &data };
            assert_eq!(world.ask(&mut front, &write), Ok((Ok(()), vec![])), "{nr_pages}");
            let read = Ask::Read { sector: 8, sectors: 8 * nr_pages as u32 };
            assert_eq!(world.ask(&mut front, &read), Ok((Ok(()), data)), "{nr_pages}");
            assert_eq!((pages(&mut front), world.xen.counts().grants), (has, standing(has)), "{nr_pages}");
        }
        world.end(front);
    }
}

/// The page that was returned last is used first, even after more pages were granted: so a back
/// that keeps pages mapped maps only as many as are in use at once.
#[test]
fn new_pages_are_used_after_those_that_came_back() {
    let setting = persistent();
    let mut world = World::new(setting.back, figures());
    let mut front = world.front(setting.front);
    // All of the first step, with a page for the list.
    let read = Ask::Read { sector: 0, sectors: 8 * 15 };
    (0..2).for_each(|_| world.ask(&mut front, &read).unwrap().0.unwrap());
    let before = world.xen.counts();
    world.ask(&mut front, &Ask::Read { sector: 0, sectors: 8 * 20 }).unwrap().0.unwrap();
    assert_eq!(pages(&mut front), 32);
    let maps = world.xen.counts().since(&before).maps;
    assert!((4..=5).contains(&maps), "{maps} pages mapped, and 16 of the 21 were seen before");
    world.end(front);
}

#[test]
fn a_queue_never_has_more_pages_than_its_bound() {
    for (bound, requests) in [(11, 11), (16, 16), (17, 17), (31, 31), (32, 32), (512, 32)] {
        let setting = persistent();
        let mut world = World::new(setting.back, figures());
        let mut front = world.front(FrontConfig { pages: bound, ..setting.front });
        // A page each: the pages end, or the ring's slots.
        assert_eq!(until_refused(&mut world, &mut front, 8), (requests, NotAsked::Full), "{bound}");
        assert_eq!(pages(&mut front), bound.min(32), "{bound}");
        if bound == 512 {
            // 11 each, which need no list.
            assert_eq!(until_refused(&mut world, &mut front, 88), (32, NotAsked::Full));
            assert_eq!(pages(&mut front), 32 * 11);
        }
        assert!(world.xen.counts().grants <= RING + bound);
        for _ in 0..20 {
            until_refused(&mut world, &mut front, 8);
        }
        assert!(pages(&mut front) <= bound);
        world.end(front);
    }
}

/// The grant table is full in the middle of a step, or of a request: the front sends shorter
/// requests, and longer ones again when there is room.
#[test]
fn a_platform_that_refuses_pages_makes_requests_shorter_for_a_while() {
    let setting = persistent();
    let mut world = World::new(setting.back, figures());
    // The second step can be granted, the third in part.
    world.xen.limit_grants(GUEST, RING + 2 * STEP_PAGES + 5);
    let mut front = world.front(setting.front);
    let data = pattern(64 * 4096, 1);
    assert_eq!(front.most_bytes(0), 64 * 4096);
    let longest = Ask::Write { sector: 0, bytes: &data };
    assert_eq!(world.ask(&mut front, &longest), Err(NotAsked::Full));
    assert_eq!(world.xen.counts().grants, RING + 2 * STEP_PAGES, "of the third step nothing stays granted");
    // One of 32 is for the list.
    assert_eq!(front.most_bytes(0), 31 * 4096);
    assert_eq!(world.ask(&mut front, &longest), Err(NotAsked::Length));
    for piece in data.chunks(front.most_bytes(0)) {
        let sector = (piece.as_ptr() as u64 - data.as_ptr() as u64) / 512;
        assert_eq!(world.ask(&mut front, &Ask::Write { sector, bytes: piece }), Ok((Ok(()), vec![])));
    }
    assert!(world.disk.inside().cache[..data.len()] == data);
    // There is room again. It is asked for after a while, and not at once.
    world.xen.limit_grants(GUEST, 1000);
    let mut wants = 0;
    let mut after = 0;
    while front.most_bytes(0) < 64 * 4096 {
        assert_eq!(pages(&mut front), 32);
        let (asked, why) = until_refused(&mut world, &mut front, 16);
        assert_eq!(why, NotAsked::Full);
        wants += 1;
        after = asked;
    }
    assert_eq!((wants, after), (REFUSALS, 32), "the request that asked for pages got them");
    assert_eq!(world.ask(&mut front, &longest), Ok((Ok(()), vec![])));
    world.end(front);
}

/// The grant of one page in the middle of a request is refused: nothing of the request is left.
#[test]
fn a_grant_that_is_refused_in_the_middle_of_a_request_leaves_nothing_granted() {
    let setting = Setting::of(PathName::Copy, Abi::X86_64);
    let mut world = World::new(setting.back, figures());
    let mut front = world.front(setting.front);
    for k in 0..10 {
        world.xen.limit_grants(GUEST, RING + k);
        let read = Ask::Read { sector: 0, sectors: 80 };
        assert!(matches!(world.ask(&mut front, &read), Err(NotAsked::Platform(_))), "{k}");
        assert_eq!(world.xen.counts().grants, RING, "{k}");
    }
    world.xen.limit_grants(GUEST, RING + 10);
    let read = Ask::Read { sector: 0, sectors: 80 };
    assert_eq!(world.ask(&mut front, &read).unwrap().0, Ok(()));
    assert_eq!((world.xen.counts().grants, pages(&mut front)), (RING, STEP_PAGES));
    world.end(front);
}

/// The first pages cannot be granted: there is no queue, and nothing is left.
#[test]
fn a_queue_needs_its_first_pages() {
    let setting = persistent();
    let mut world = World::new(setting.back, figures());
    world.xen.limit_grants(GUEST, RING + STEP_PAGES - 1);
    let mut front = FrontVbd::new(HOST, setting.front, false);
    world.step_back().unwrap();
    assert!(front.step(&world.guest, &mut world.front_bus).is_err());
    assert_eq!(world.xen.counts().grants, 0);
    // Of two queues there is one, and its requests have what is left.
    world.xen.limit_grants(GUEST, RING + 2 * STEP_PAGES);
    let mut front = FrontVbd::new(HOST, FrontConfig { queues: 2, ..setting.front }, false);
    assert_eq!(world.connect(&mut front), [FrontStep::Live]);
    assert_eq!((front.nr_queues(), front.not_offered().len()), (1, 1));
    assert_eq!(until_refused(&mut world, &mut front, 8), (32, NotAsked::Full));
    world.end(front);
}

/// Backs come and go, with all of the bound in use and with little: the next gets the pages of the
/// last, as it needs them, and no others.
#[test]
fn a_back_that_is_replaced_gets_the_same_pages_and_no_others() {
    let setting = persistent();
    let mut world = World::new(setting.back, figures());
    let mut front = FrontVbd::new(HOST, setting.front, true);
    assert_eq!(world.connect(&mut front), [FrontStep::Live]);
    assert_eq!(until_refused(&mut world, &mut front, 24), (32, NotAsked::Full));
    let most = world.xen.counts().grants;
    assert_eq!(most, RING + 96);
    for turn in 0..20 {
        // A front that closed does not begin again at once, each time.
        world.xen.stop_clock((1 + turn) * 1_000_000_000_000);
        world.back.close(&world.host, &mut world.back_bus, None).unwrap();
        assert_eq!(world.connect(&mut front), [FrontStep::Closed, FrontStep::Live]);
        assert_eq!(pages(&mut front), STEP_PAGES, "{turn}");
        let data = pattern(64 * 4096, turn);
        let long = Ask::Write { sector: 0, bytes: &data };
        assert_eq!(world.ask(&mut front, &long), Ok((Ok(()), vec![])), "{turn}");
        assert!(world.disk.inside().cache[..data.len()] == data, "{turn}");
        assert_eq!(pages(&mut front), 80, "{turn}");
        if turn % 3 == 0 {
            until_refused(&mut world, &mut front, 24);
        }
        assert_eq!(world.xen.counts().grants, most, "{turn}");
    }
    // One that takes the live rings up finds them in use, as they are.
    assert!(world.succeed().expect("a live ring"));
    assert_eq!(pages(&mut front), 80);
    assert_eq!(until_refused(&mut world, &mut front, 24), (32, NotAsked::Full));
    assert_eq!(world.xen.counts().grants, most);
    drop(front);
}
