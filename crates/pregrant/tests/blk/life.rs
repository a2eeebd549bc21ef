//! From keys to a live disk, and back.
#![cfg(not(miri))]

use crate::world::{HOST, SECTORS, Setting, World, figures, pattern};
use pregrant::blk::back::VbdConfig;
use pregrant::blk::disk::{Discard, DiskFigures, IoError};
use pregrant::blk::features::BackFeatures;
use pregrant::blk::front::{Ask, FrontConfig, FrontStep, FrontVbd, NotAsked};
use pregrant::blk::path::PathName;
use pregrant::wire::blkif::Abi;
use pregrant::xenbus::BackDevice;
use pregrant::xenbus::XenbusState;
use pregrant::xenbus::back::PageShare;
use pregrant::xenbus::connect_error::ConnectError;
use pregrant_testkit::model_disk::byte;

#[test]
fn bytes_go_both_ways_on_every_path_in_both_layouts() {
    for setting in Setting::all() {
        for (ring_order, queues) in [(0, 1), (4, 1), (1, 3)] {
            let mut world = World::new(setting.back, figures());
            let config = FrontConfig { ring_order, queues, ..setting.front };
            let mut front = world.front(config);
            assert_eq!(front.nr_queues(), queues as usize);
            assert_eq!(front.persists(), setting.path == PathName::Persistent);
            assert_eq!(world.back.shares()[0].path, setting.path);
            let data = pattern(64 * 4096, 3);
            // One sector, one page, across the 11 segments of a slot, and the longest.
            for (sector, len) in
                [(1, 512), (8, 4096), (100, 9 * 512), (200, 45056), (800, 45568), (8, 262144)]
            {
                let read = Ask::Read { sector, sectors: len as u32 / 512 };
                let at = sector as usize * 512;
                let before: Vec<u8> = world.disk.inside().cache[at..at + len].to_vec();
                assert_eq!(world.ask(&mut front, &read), Ok((Ok(()), before)), "{setting:?}");
                let write = Ask::Write { sector, bytes: &data[..len] };
                assert_eq!(world.ask(&mut front, &write), Ok((Ok(()), vec![])));
                assert!(world.disk.inside().cache[at..at + len] == data[..len]);
                assert_eq!(world.ask(&mut front, &read), Ok((Ok(()), data[..len].to_vec())));
            }
            assert!(
                world.disk.inside().cache[3000 * 512..]
                    .iter()
                    .zip(3000 * 512..)
                    .all(|(b, at)| *b == byte(at))
            );
            // The owner of an answer may end its grants.
            assert_eq!(front.queue_mut(0).unwrap().busy_pages(), 0);
            let counts = world.back.shares()[0].counters.read();
            assert_eq!((counts.reads, counts.writes, counts.answers), (12, 6, 18));
            assert_eq!(counts.bytes_written * 2, counts.bytes_read);
            world.end(front);
        }
    }
}

#[test]
fn an_empty_drive_waits_for_an_image() {
    let mut world = World::new(VbdConfig::default(), figures());
    for (key, value) in [("device-type", "cdrom"), ("params", "")] {
        world.back_bus.own.borrow_mut().insert(key.into(), value.into());
    }
    let mut front = FrontVbd::new(HOST, FrontConfig::default(), false);
    assert_eq!(world.connect(&mut front), []);
    assert_eq!((world.back.state(), front.state()), (XenbusState::InitWait, XenbusState::Initialised));
    world.back_bus.own.borrow_mut().insert("params".into(), "/cd".into());
    assert_eq!(world.connect(&mut front), [FrontStep::Live]);
    world.end(front);
}

#[test]
fn grant_operations_are_those_of_the_path() {
    for path in PathName::ALL {
        let setting = Setting::of(path, Abi::X86_64);
        let mut world = World::new(setting.back, figures());
        let mut front = world.front(setting.front);
        let data = pattern(4 * 4096, 1);
        let write = Ask::Write { sector: 0, bytes: &data };
        world.ask(&mut front, &write).unwrap().0.unwrap();
        let before = world.xen.counts();
        world.ask(&mut front, &write).unwrap().0.unwrap();
        world.ask(&mut front, &Ask::Read { sector: 0, sectors: 32 }).unwrap().0.unwrap();
        let c = world.xen.counts().since(&before);
        let expected = match path {
            PathName::Copy => (8, 0, 0),
            PathName::Map => (0, 8, 8),
            PathName::Persistent => (0, 0, 0),
        };
        assert_eq!((c.copies, c.maps, c.unmaps), expected, "{path}");
        world.end(front);
    }
}

/// A successor notifies a front of answers that it may not know of, and of nothing else
/// (docs/protocol 1.1, R5).
#[test]
fn a_successor_notifies_of_what_may_be_untold_alone() {
    let mut world = World::new(VbdConfig::default(), figures());
    let mut front = world.front(FrontConfig::default());
    let events = |world: &mut World| {
        let before = world.xen.counts().notifications;
        assert_eq!(world.succeed().ok(), Some(true));
        world.xen.counts().notifications - before
    };
    for _ in 0..3 {
        let write = Ask::Write { sector: 8, bytes: &[7; 4096] };
        front.submit(&world.guest, 0, &write, 77).unwrap();
        front.publish(&world.guest, 0);
        assert_eq!(front.arm(&world.guest), Ok(false), "it sleeps until the answer");
        assert_eq!((events(&mut world), events(&mut world)), (0, 0), "there is none");
        // Answered, and perhaps not notified; one that dies next does not know either.
        while front.arm(&world.guest) == Ok(false) {
            world.poll_back();
        }
        assert_eq!((events(&mut world), events(&mut world)), (1, 1));
        assert_eq!(front.take(&world.guest, 0, |answer| assert_eq!(answer.tag, 77)), Ok(1));
    }
    world.end(front);
}

#[test]
fn what_a_disk_is_reaches_its_guest() {
    let cd = DiskFigures {
        sectors: SECTORS,
        sector_size: 4096,
        physical_sector_size: 8192,
        read_only: true,
        cdrom: true,
        removable: true,
        flush: false,
        discard: None,
    };
    let disk = DiskFigures {
        discard: Some(Discard { granularity: 65536, alignment: 512, secure: true, zeroes: true }),
        ..DiskFigures::of(SECTORS)
    };
    let odd = DiskFigures { sector_size: 2048, ..DiskFigures::of(SECTORS) };
    for published in [cd, disk, odd, DiskFigures::of(1 << 40)] {
        let open = DiskFigures { sectors: SECTORS, ..published };
        let mut world = World::new(VbdConfig { native_sectors: true, ..VbdConfig::default() }, open);
        world.disk.inside().figures = published;
        let front = world.front(FrontConfig::default());
        assert_eq!(front.figures(), Some(&published));
        world.end(front);
    }
    // The toolstack's `mode` and `device-type` add to what the image is.
    for (mode, read_only) in [(Some("r"), true), (None, true), (Some("w!"), false), (Some("w"), false)] {
        let mut world = World::new(VbdConfig::default(), figures());
        match mode {
            Some(mode) => drop(world.back_bus.own.borrow_mut().insert("mode".into(), mode.into())),
            None => drop(world.back_bus.own.borrow_mut().remove("mode")),
        }
        world.front_bus.own.borrow_mut().insert("device-type".into(), "cdrom".into());
        let mut front = world.front(FrontConfig::default());
        let published = *front.figures().unwrap();
        assert_eq!((published.read_only, published.cdrom), (read_only, true));
        assert_eq!(world.disk.inside().writable, !read_only, "an image gets it as it opens");
        let write = world.ask(&mut front, &Ask::Write { sector: 0, bytes: &[1; 512] }).unwrap().0;
        assert_eq!(write.is_err(), read_only);
        world.end(front);
    }
}

#[test]
fn nothing_is_connected_before_the_disk_is_open() {
    let mut world = World::new(VbdConfig::default(), figures());
    world.disk.inside().broken = Some("no such image: give another in `params`".into());
    let mut front = pregrant::blk::front::FrontVbd::new(crate::world::HOST, FrontConfig::default(), true);
    world.step_back().unwrap();
    assert_eq!(world.disk.inside().opened, 0);
    front.step(&world.guest, &mut world.front_bus).unwrap();
    let e = world.step_back().unwrap_err();
    assert!(matches!(&e, ConnectError::Unready(why) if why.contains("no such image")), "{e}");
    assert_eq!(world.xen.counts().mapped, 0);
    assert_eq!(world.back.state(), XenbusState::InitWait);
    assert!(!world.back_bus.own.borrow().contains_key("sectors"));
    world.back.close(&world.host, &mut world.back_bus, Some(&e.to_string())).unwrap();
    // It is mended; the front comes down and up again.
    world.disk.inside().broken = None;
    assert_eq!(world.connect(&mut front), [FrontStep::Closed, FrontStep::Live]);
    assert_eq!(world.ask(&mut front, &Ask::Flush).unwrap().0, Ok(()));
    drop(front);
}

#[test]
fn a_disk_grows_and_shrinks_while_it_is_used() {
    let mut world = World::new(VbdConfig::default(), figures());
    world.disk.inside().figures.sectors = SECTORS / 2;
    let mut front = world.front(FrontConfig::default());
    let last = Ask::Read { sector: SECTORS - 1, sectors: 1 };
    assert_eq!(world.ask(&mut front, &last).unwrap().0, Err(IoError::Failed));
    world.disk.inside().figures.sectors = SECTORS;
    world.back.resize(&mut world.back_bus, SECTORS).unwrap();
    assert_eq!(front.step(&world.guest, &mut world.front_bus).unwrap(), FrontStep::Resized);
    assert_eq!(front.figures().unwrap().sectors, SECTORS);
    assert_eq!(world.ask(&mut front, &last).unwrap().0, Ok(()));
    world.back.resize(&mut world.back_bus, SECTORS).unwrap();
    assert_eq!(front.step(&world.guest, &mut world.front_bus).unwrap(), FrontStep::Waiting);
    world.back.resize(&mut world.back_bus, 8).unwrap();
    assert_eq!(world.ask(&mut front, &last).unwrap().0, Err(IoError::Failed));
    assert_eq!(world.back.figures().unwrap().sectors, 8);
    world.end(front);
}

#[test]
fn old_ends_get_plain_blkif() {
    // A back that keeps no pages, takes no lists, one queue and rings of a page; and one whose
    // features are not known.
    let old = BackFeatures {
        max_ring_order: 0,
        max_queues: 1,
        max_indirect_segments: 0,
        persistent: false,
        barrier: false,
    };
    let mut world = World::new(VbdConfig { features: old, ..VbdConfig::default() }, DiskFigures::of(SECTORS));
    let config = FrontConfig { queues: 4, ring_order: 4, ..FrontConfig::default() };
    let mut front = world.front(config);
    assert_eq!((front.nr_queues(), front.persists()), (1, false));
    assert_eq!(world.back.shares()[0].path, PathName::Copy);
    let long = [7; 12 * 4096];
    assert_eq!(world.ask(&mut front, &Ask::Write { sector: 0, bytes: &long }), Err(NotAsked::Length));
    assert_eq!(world.ask(&mut front, &Ask::Write { sector: 0, bytes: &long[4096..] }).unwrap().0, Ok(()));
    let barrier = Ask::Barrier { sector: 0, bytes: &[0; 512] };
    assert_eq!(world.ask(&mut front, &barrier).unwrap().0, Err(IoError::NotSupported));
    let discard = Ask::Discard { sector: 0, sectors: 8, secure: false };
    assert_eq!(world.ask(&mut front, &discard).unwrap().0, Err(IoError::NotSupported));
    world.end(front);
    // A front that does not persist, at a back that would: `map` serves it.
    let config = VbdConfig { fallback: PathName::Map, ..VbdConfig::default() };
    let mut world = World::new(config, figures());
    let mut front = world.front(FrontConfig { persistent: false, ..FrontConfig::default() });
    assert_eq!(world.back.shares()[0].path, PathName::Map);
    assert_eq!(world.ask(&mut front, &Ask::Write { sector: 0, bytes: &long }).unwrap().0, Ok(()));
    world.end(front);
}

#[test]
fn a_front_s_keys_are_validated() {
    for (key, value, names) in [
        ("protocol", "ppc64-abi", "protocol"),
        ("ring-ref", "seven", "ring-ref"),
        ("ring-ref", "99999", "ring-ref"),
        ("event-channel", "", "event-channel"),
        ("event-channel", "4000000", "event-channel"),
        ("multi-queue-num-queues", "5", "multi-queue-num-queues"),
        ("multi-queue-num-queues", "0", "multi-queue-num-queues"),
    ] {
        let mut world = World::new(VbdConfig::default(), figures());
        let mut front =
            pregrant::blk::front::FrontVbd::new(crate::world::HOST, FrontConfig::default(), false);
        world.step_back().unwrap();
        front.step(&world.guest, &mut world.front_bus).unwrap();
        world.front_bus.own.borrow_mut().insert(key.into(), value.into());
        let e = world.step_back().unwrap_err().to_string();
        assert!(e.contains(names), "{key}={value}: {e}");
        assert_eq!(world.xen.counts().mapped, 0, "{key}={value}");
    }
    // An order beyond what was offered.
    let mut world = World::new(VbdConfig::default(), figures());
    world.step_back().unwrap();
    for (key, value) in [("ring-page-order", "5"), ("event-channel", "1"), ("state", "3")] {
        world.front_bus.own.borrow_mut().insert(key.into(), value.into());
    }
    let e = world.step_back().unwrap_err().to_string();
    assert!(e.contains("ring-page-order=5: at most the back's max-ring-page-order"), "{e}");
}

#[test]
fn a_guest_s_pages_are_bounded() {
    // Rings have to fit (XSA-300); what no page is left for goes by copies.
    for path in [PathName::Map, PathName::Persistent] {
        let setting = Setting::of(path, Abi::X86_64);
        let mut world = World::new(setting.back, figures());
        world.back.limit_pages(0);
        let mut front = pregrant::blk::front::FrontVbd::new(crate::world::HOST, setting.front, false);
        world.step_back().unwrap();
        front.step(&world.guest, &mut world.front_bus).unwrap();
        assert!(matches!(world.step_back(), Err(ConnectError::TooManyPages(_))));
        assert_eq!(world.xen.counts().mapped, 0);
        for limit in [1, 2, 12, 100, 300] {
            let mut world = World::new(setting.back, figures());
            world.back.limit_pages(limit);
            let mut front = world.front(setting.front);
            let all = |world: &World| world.back.pages().needed + world.back.pages().allowed;
            assert_eq!(all(&world), limit, "{path}");
            let before = world.xen.counts();
            for k in 0..40 {
                world
                    .ask(&mut front, &Ask::Write { sector: k, bytes: &[k as u8; 64 * 4096] })
                    .unwrap()
                    .0
                    .unwrap();
                assert!(world.xen.counts().most_mapped <= limit);
                let read = world.ask(&mut front, &Ask::Read { sector: k, sectors: 64 * 8 }).unwrap().1;
                assert_eq!(read, [k as u8; 64 * 4096]);
            }
            // 64 pages at a time: who may map as many copies none of them, but lists perhaps.
            let copies = world.xen.counts().since(&before).copies;
            let (all, lists) = (80 * 64, 80);
            assert!(
                if limit < 1 + 64 { copies >= all } else { copies <= lists },
                "{path}, {limit}: {copies}"
            );
            assert_eq!(world.xen.counts().mapped - world.back.shares()[0].kept_pages(), 1);
            world.end(front);
        }
    }
}

/// A queue's bound of mapped pages is its slots times the segments of its requests; the first long
/// one raises it.
#[test]
fn a_long_request_makes_a_queue_wish_for_more() {
    let setting = Setting::of(PathName::Map, Abi::X86_64);
    let mut world = World::new(setting.back, figures());
    let mut front = world.front(setting.front);
    assert_eq!((world.back.pages().least, world.back.pages().requested), (1, 32 * 11));
    world.ask(&mut front, &Ask::Write { sector: 0, bytes: &[1; 11 * 4096] }).unwrap().0.unwrap();
    assert_eq!((world.back.pages().requested, world.back.queues()[0].has_grown()), (32 * 11, false));
    world.ask(&mut front, &Ask::Write { sector: 0, bytes: &[1; 30 * 4096] }).unwrap().0.unwrap();
    assert_eq!((world.back.pages().requested, world.back.queues()[0].has_grown()), (32 * 32, true));
    world.ask(&mut front, &Ask::Write { sector: 0, bytes: &[1; 31 * 4096] }).unwrap().0.unwrap();
    assert!(!world.back.queues()[0].has_grown());
    let host = world.host.clone();
    world.back.allow_pages(&host, PageShare { pages: 500, lasting: usize::MAX });
    assert_eq!((world.back.pages().least, world.back.pages().needed), (1, 501));
    world.end(front);
}

#[test]
fn a_journal_that_is_blank_takes_up_nothing_but_an_idle_ring() {
    for setting in Setting::all() {
        let mut world = World::new(setting.back, figures());
        let mut front = world.front(setting.front);
        world.ask(&mut front, &Ask::Write { sector: 0, bytes: &[1; 512] }).unwrap().0.unwrap();
        world.lose_kept("0/journal");
        assert!(world.succeed().expect("no one waits for an answer"));
        // The second of two is answered, over the first.
        world.disk.inside().by_hand = true;
        for tag in 0..2 {
            front.submit(&world.guest, 0, &Ask::Write { sector: 8 * tag, bytes: &[2; 512] }, tag).unwrap();
        }
        front.publish(&world.guest, 0);
        world.poll_back();
        assert!(world.disk.inside().do_one(1));
        world.poll_back();
        world.lose_kept("0/journal");
        // Nor does a successor's successor believe what the first one left.
        for _ in 0..2 {
            let e = world.succeed().expect_err("which of them were answered?");
            assert!(matches!(e, ConnectError::Lost(_)), "{e}");
        }
        assert_eq!(world.disk.log().len(), 3, "nothing is done again");
        assert_eq!(world.xen.counts().mapped, 0);
        drop(front);
    }
}

#[test]
fn a_successor_s_image_keeps_what_the_guest_was_offered() {
    let published = DiskFigures { flush: false, ..figures() };
    for (what, now, taken) in [
        ("the same", published, true),
        ("longer", DiskFigures { sectors: SECTORS + 8, ..published }, true),
        ("shorter", DiskFigures { sectors: SECTORS - 8, ..published }, false),
        (
            "longer sectors, which the guest need not know",
            DiskFigures { sector_size: 4096, ..published },
            true,
        ),
        ("a cache that the guest never flushes", DiskFigures { flush: true, ..published }, false),
        ("only to be read", DiskFigures { read_only: true, ..published }, false),
    ] {
        let mut world = World::new(VbdConfig::default(), published);
        let front = world.front(FrontConfig::default());
        world.disk.inside().figures = now;
        match world.succeed() {
            Ok(up) => assert!(up && taken, "{what}"),
            Err(e) => assert!(matches!(e, ConnectError::Lost(_)) && !taken, "{what}: {e}"),
        }
        drop(front);
    }
}

#[test]
fn a_guest_that_was_offered_long_sectors_is_not_given_short_ones() {
    let own = DiskFigures { sector_size: 4096, ..figures() };
    let mut world = World::new(VbdConfig { native_sectors: true, ..VbdConfig::default() }, own);
    let front = world.front(FrontConfig::default());
    world.disk.inside().figures = figures();
    let e = world.succeed().expect_err("other sectors");
    assert!(matches!(e, ConnectError::Lost(_)), "{e}");
    drop(front);
}

#[test]
fn an_image_that_grew_while_no_back_ran_is_announced() {
    let mut world = World::new(VbdConfig::default(), figures());
    world.disk.inside().figures.sectors = SECTORS / 2;
    let mut front = world.front(FrontConfig::default());
    let last = Ask::Read { sector: SECTORS - 1, sectors: 1 };
    world.disk.inside().figures.sectors = SECTORS;
    assert!(world.succeed().expect("a live ring"));
    assert_eq!(front.step(&world.guest, &mut world.front_bus).unwrap(), FrontStep::Resized);
    assert_eq!(front.figures().unwrap().sectors, SECTORS);
    assert_eq!(world.ask(&mut front, &last).unwrap().0, Ok(()));
    // One that is as long as it was is not spoken of: a front does not react to a successor.
    world.back_bus.own.borrow_mut().insert("state".into(), "04".into());
    assert!(world.succeed().expect("a live ring"));
    assert_eq!(world.back_bus.own.borrow()["state"], "04");
    world.end(front);
}

#[test]
fn a_guest_that_was_asked_to_read_only_does_so_until_it_connects_again() {
    let mut world = World::new(VbdConfig::default(), figures());
    world.back_bus.own.borrow_mut().insert("mode".into(), "r".into());
    let mut front = world.front(FrontConfig::default());
    world.back_bus.own.borrow_mut().insert("mode".into(), "w".into());
    assert!(world.succeed().expect("a live ring"));
    assert!(!world.disk.inside().writable);
    let write = Ask::Write { sector: 0, bytes: &[1; 512] };
    assert_eq!(world.ask(&mut front, &write).unwrap().0, Err(IoError::Failed));
    world.end(front);
}

#[test]
fn what_a_predecessor_offered_ends_with_its_connection() {
    let offers = |segments| BackFeatures { max_indirect_segments: segments, ..BackFeatures::default() };
    let mut world = World::new(VbdConfig { features: offers(32), ..VbdConfig::default() }, figures());
    let config = FrontConfig { max_segments: 256, ..FrontConfig::default() };
    let mut front = pregrant::blk::front::FrontVbd::new(crate::world::HOST, config, true);
    assert_eq!(world.connect(&mut front), [FrontStep::Live]);
    world.config.features = offers(64);
    assert!(world.succeed().expect("a live ring"));
    assert_eq!(front.queue_mut(0).unwrap().most_bytes(), 32 * 4096);
    world.back.close(&world.host, &mut world.back_bus, None).unwrap();
    assert_eq!(world.connect(&mut front), [FrontStep::Closed, FrontStep::Live]);
    assert_eq!(front.queue_mut(0).unwrap().most_bytes(), 64 * 4096);
    drop(front);
}

#[test]
fn a_front_with_few_pages_takes_no_request_that_it_can_never_send() {
    for pages in [11, 12, 13, 20, 65, 96] {
        let setting = Setting::of(PathName::Copy, Abi::X86_64);
        let mut world = World::new(setting.back, figures());
        let mut front = world.front(FrontConfig { pages, max_segments: 256, ..setting.front });
        let most = front.queue_mut(0).unwrap().most_bytes();
        assert_eq!(most / 4096, if pages <= 12 { 11 } else { pages - 1 });
        let bytes = vec![5; most + 512];
        assert_eq!(world.ask(&mut front, &Ask::Write { sector: 0, bytes: &bytes }), Err(NotAsked::Length));
        let longest = Ask::Write { sector: 0, bytes: &bytes[..most] };
        assert_eq!(world.ask(&mut front, &longest).unwrap().0, Ok(()), "{pages}");
        world.end(front);
    }
}

#[test]
fn a_front_brings_down_what_a_predecessor_left_and_goes_when_the_toolstack_takes_the_disk() {
    let mut world = World::new(VbdConfig::default(), figures());
    // Killed, as a process is: no one says a word, and its memory goes.
    drop(world.front(FrontConfig::default()));
    let mut front = FrontVbd::new(HOST, FrontConfig::default(), true);
    front.succeed(&mut world.front_bus).unwrap();
    assert_eq!(front.state(), XenbusState::Closing);
    assert_eq!(world.connect(&mut front), [FrontStep::Live]);
    let data = pattern(4096, 9);
    world.ask(&mut front, &Ask::Write { sector: 8, bytes: &data }).unwrap().0.unwrap();
    // One that closed in good order left nothing: the next begins at once.
    let tag = 7;
    front.submit(&world.guest, 0, &Ask::Flush, tag).unwrap();
    front.removed(&world.guest);
    assert_eq!((front.state(), front.nr_queues(), front.take_lost()), (XenbusState::Closed, 0, vec![tag]));
    assert!(!front.awaits_release(), "it keeps its pages for another disk of the number");
    world.front_bus.own.borrow_mut().insert("state".into(), XenbusState::Closed.digit().into());
    let mut front = FrontVbd::new(HOST, FrontConfig::default(), true);
    front.succeed(&mut world.front_bus).unwrap();
    assert_eq!((front.state(), world.connect(&mut front)), (XenbusState::Closed, vec![FrontStep::Live]));
}

#[test]
fn a_flush_is_what_the_back_knows() {
    let published = [
        ("1", "1", Some(Ask::Flush)),
        ("1", "0", Some(Ask::Flush)),
        ("0", "1", Some(Ask::Barrier { sector: 0, bytes: &[] })),
        ("0", "0", None),
    ];
    for (flush, barrier, expected) in published {
        let mut world = World::new(VbdConfig::default(), figures());
        let mut front = FrontVbd::new(HOST, FrontConfig::default(), false);
        assert_eq!(front.flush_ask(), None);
        while front.state() != XenbusState::Initialised {
            world.step_back().unwrap();
            front.step(&world.guest, &mut world.front_bus).unwrap();
        }
        world.step_back().unwrap();
        for (key, value) in [("feature-flush-cache", flush), ("feature-barrier", barrier)] {
            world.back_bus.own.borrow_mut().insert(key.into(), value.into());
        }
        assert_eq!(front.step(&world.guest, &mut world.front_bus).unwrap(), FrontStep::Live);
        assert_eq!(front.flush_ask(), expected);
        world.end(front);
    }
}

/// If a disk answers nothing, no latency is known, but the age of its oldest request is.
#[test]
fn the_oldest_request_that_is_not_answered_has_an_age() {
    const S: u64 = 1_000_000_000;
    let mut world = World::new(VbdConfig::default(), figures());
    let mut front = world.front(FrontConfig { queues: 2, ..FrontConfig::default() });
    let mut ask = |world: &mut World, queue: usize, at_s: u64| {
        world.xen.stop_clock(at_s * S);
        front.submit(&world.guest, queue, &Ask::Read { sector: 8, sectors: 8 }, 5).unwrap();
        front.publish(&world.guest, queue);
        world.poll_back();
    };
    assert_eq!(world.back.oldest_ns(), None);
    ask(&mut world, 0, 3);
    assert_eq!(world.back.oldest_ns(), None, "it was answered");
    world.disk.inside().by_hand = true;
    for (queue, at_s) in [(1, 10), (0, 12), (1, 15)] {
        ask(&mut world, queue, at_s);
        assert_eq!(world.back.oldest_ns(), Some(10 * S));
    }
    // Whichever is answered, the oldest of the others counts.
    for (which, oldest) in [(0, Some(10 * S)), (0, Some(15 * S)), (0, None)] {
        assert!(world.disk.inside().do_one(which));
        world.poll_back();
        assert_eq!(world.back.oldest_ns(), oldest);
    }
    world.disk.inside().by_hand = false;
    world.end(front);
}
