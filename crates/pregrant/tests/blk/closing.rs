//! A front that says Closing (5) while its disk is in use, as Linux's does up to 5.13: it continues
//! to use its ring until it says Closed (6). The back must serve it meanwhile, and so must a
//! successor.
#![cfg(not(miri))]

use crate::raw_front::RawFront;
use crate::world::{GUEST, HOST, SECTORS, Setting, World, figures, pattern};
use pregrant::blk::back::{BackVbd, VbdConfig};
use pregrant::blk::disk::DiskFigures;
use pregrant::blk::front::{Ask, FrontConfig, FrontStep, FrontVbd};
use pregrant::blk::path::PathName;
use pregrant::ring::Blkif64;
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{Abi, OP_FLUSH_DISKCACHE, OP_READ, OP_WRITE, RSP_OKAY, Request, RwRequest};
use pregrant::xenbus::XenbusState;
use pregrant::xenbus::back::{BackStep, PreviousState};

type Front = RawFront<Blkif64>;

fn settings() -> impl Iterator<Item = Setting> {
    PathName::ALL.into_iter().map(|path| Setting::of(path, Abi::X86_64))
}

/// A key of one end.
fn set(world: &World, of_back: bool, key: &str, value: &str) {
    let bus = if of_back { &world.back_bus } else { &world.front_bus };
    bus.own.borrow_mut().insert(key.into(), value.into());
}

/// The keys by which a toolstack removes a disk, as libxl does.
fn detach(world: &World) {
    set(world, true, "online", "0");
    set(world, true, "state", "5");
}

fn back_says(world: &World) -> String {
    world.back_bus.own.borrow()["state"].clone()
}

fn flush(id: u64) -> Request {
    let (op, seg) = (OP_FLUSH_DISKCACHE, Default::default());
    Request::ReadWrite(RwRequest { op, nr_segments: 0, handle: 0, id, sector: 0, seg })
}

/// Writes these bytes to pages, reads them back, and flushes, as a file system does when it is
/// unmounted.
fn write_and_flush(world: &mut World, front: &mut Front, seed: u64) {
    let data = pattern(4096, seed);
    assert!(front.pages.copy_in(0, &data));
    assert_eq!(front.ask(world, &front.pages_of(OP_WRITE, 8 * seed, &[0])), RSP_OKAY);
    assert_eq!(front.ask(world, &front.pages_of(OP_READ, 8 * seed, &[1])), RSP_OKAY);
    let mut read = vec![0; 4096];
    assert!(front.pages.copy_out(4096, &mut read));
    assert!(read == data);
    assert_eq!(front.ask(world, &flush(seed)), RSP_OKAY);
    let at = 8 * seed as usize * 512;
    assert!(world.disk.inside().platter[at..at + 4096] == data, "it is not on the disk");
}

#[test]
fn a_front_in_use_is_served_at_5_until_it_says_6() {
    for setting in settings() {
        for by_toolstack in [false, true] {
            let mut world = World::new(setting.back, figures());
            let mut front = Front::connect(&mut world, 2);
            // One that is under way as it says so.
            world.disk.inside().by_hand = true;
            front.push(&front.pages_of(OP_WRITE, 0, &[0]));
            front.publish();
            world.poll_back();
            if by_toolstack {
                detach(&world);
                assert_eq!(world.step_back().unwrap(), BackStep::Waiting, "its front has not said anything");
                assert_eq!(world.back.state(), XenbusState::Connected);
            }
            set(&world, false, "state", "5");
            assert_eq!(world.step_back().unwrap(), BackStep::Closing);
            assert_eq!((world.back.state(), back_says(&world)), (XenbusState::Closing, "5".into()));
            assert!(world.disk.inside().do_one(0));
            world.poll_back();
            assert_eq!(front.answers().len(), 1);
            world.disk.inside().by_hand = false;
            for seed in 1..4 {
                write_and_flush(&mut world, &mut front, seed);
                assert_eq!(world.step_back().unwrap(), BackStep::Waiting);
                assert_eq!(back_says(&world), "5");
            }
            // It is unmounted.
            set(&world, false, "state", "6");
            let over = if by_toolstack { BackStep::Removed } else { BackStep::Closed };
            assert_eq!(world.step_back().unwrap(), over);
            assert_eq!(back_says(&world), "6");
            assert_eq!(world.xen.counts().mapped, 0);
            // No next back offers again what the toolstack wants gone.
            let states: &[_] = if by_toolstack { &["1", "3", "4", "5", "1"] } else { &["1"] };
            for state in states {
                set(&world, false, "state", state);
                let came_to = world.step_back().unwrap();
                let expected = if by_toolstack { (over, "6") } else { (BackStep::Waiting, "2") };
                assert_eq!((came_to, &*back_says(&world)), expected, "front {state}");
            }
            front.end_after(world, |_| ());
        }
    }
}

/// The back's process is killed, and another finds 5 in one of the directories, or in both.
#[test]
fn a_successor_takes_up_a_disk_that_is_closing_and_in_use() {
    for setting in settings() {
        for (back, front_state) in [("5", "5"), ("5", "4"), ("4", "5"), ("5", "3")] {
            let what = format!("{}, back {back}, front {front_state}", setting.path);
            let mut world = World::new(setting.back, figures());
            let mut front = Front::connect(&mut world, 2);
            world.disk.inside().by_hand = true;
            let data = pattern(4096, 9);
            assert!(front.pages.copy_in(0, &data));
            front.push(&front.pages_of(OP_WRITE, 16, &[0]));
            front.publish();
            set(&world, true, "state", back);
            set(&world, true, "online", if back == "5" { "0" } else { "1" });
            set(&world, false, "state", front_state);
            if (back, front_state) == ("5", "5") {
                assert_eq!(world.step_back().unwrap(), BackStep::Closing);
            }
            world.poll_back();
            assert!(world.succeed().unwrap_or_else(|e| panic!("{what}: {e}")), "{what}");
            assert_eq!(back_says(&world), back, "{what}: a successor says nothing");
            world.disk.inside().by_hand = false;
            let _ = world.step_back().unwrap();
            for _ in 0..4 {
                world.poll_back();
            }
            let answers = front.answers();
            assert_eq!(answers.len(), 1, "{what}: answered once");
            assert_eq!(answers[0].0.status, RSP_OKAY);
            write_and_flush(&mut world, &mut front, 3);
            assert!(world.disk.inside().platter[16 * 512..24 * 512] == data, "{what}");
            let says = if front_state == "5" { "5" } else { back };
            assert_eq!(back_says(&world), says, "{what}");
            front.end(world);
        }
    }
}

/// A back that ends, and only then sees its front in state 5, leaves the disk to the next back,
/// even if the toolstack removes it.
#[test]
fn a_back_that_ends_leaves_a_disk_in_use_open() {
    for online in ["1", "0"] {
        let mut world = World::new(VbdConfig::default(), figures());
        let mut front = Front::connect(&mut world, 2);
        set(&world, true, "online", online);
        set(&world, false, "state", "5");
        let host = world.host.clone();
        world.back.end(&host, &mut world.back_bus, &mut ()).unwrap();
        for _ in 0..2 {
            assert_eq!(world.step_back().unwrap(), BackStep::Waiting);
            assert_eq!((world.back.state(), back_says(&world)), (XenbusState::Closing, "5".into()));
        }
        assert!(world.succeed().unwrap());
        write_and_flush(&mut world, &mut front, 1);
        front.end(world);
    }
}

/// A disk that its back closed after a fault stays closed, although the process died before it
/// wrote state 6.
#[test]
fn a_disk_that_its_back_closed_is_not_taken_up() {
    let mut world = World::new(VbdConfig::default(), figures());
    let front = Front::connect(&mut world, 2);
    let host = world.host.clone();
    world.back.close(&host, &mut world.back_bus, Some("it lied")).unwrap();
    set(&world, true, "state", "5");
    for (state, online) in [("4", "1"), ("5", "1"), ("5", "0")] {
        set(&world, false, "state", state);
        set(&world, true, "online", online);
        world.back = BackVbd::new(GUEST, 51712, world.config, Box::new(world.disk.clone()));
        let left = world.back.inherit(&mut world.back_bus).unwrap();
        assert_eq!(left, PreviousState::Closed(Some("it lied".into())));
        let came_to = world.step_back().unwrap();
        assert_eq!(world.xen.counts().mapped, 0, "front {state}");
        // The toolstack's order holds for it, too.
        let expected = if online == "1" { (BackStep::Waiting, "5") } else { (BackStep::Removed, "6") };
        assert_eq!((came_to, &*back_says(&world)), expected, "front {state}");
    }
    front.end_after(world, |_| ());
}

/// No one asked the front to close, and it goes back to state 4.
#[test]
fn a_front_that_goes_back_to_4_goes_on_with_its_ring() {
    let mut world = World::new(VbdConfig::default(), figures());
    let mut front = Front::connect(&mut world, 2);
    set(&world, false, "state", "5");
    assert_eq!(world.step_back().unwrap(), BackStep::Closing);
    write_and_flush(&mut world, &mut front, 1);
    let before = world.xen.counts();
    set(&world, false, "state", "4");
    assert_eq!(world.step_back().unwrap(), BackStep::Waiting);
    assert_eq!(back_says(&world), "4");
    write_and_flush(&mut world, &mut front, 2);
    assert_eq!(world.xen.counts().since(&before).maps, 0, "nothing was set up again");
    front.end(world);
}

/// While a Linux front is in state 5, the back must not write 4: the front would take that as a new
/// connection.
#[test]
fn a_length_that_changes_at_5_is_not_announced_with_a_4() {
    for successor in [false, true] {
        let mut world = World::new(VbdConfig::default(), DiskFigures::of(SECTORS));
        world.disk.inside().figures.sectors = SECTORS / 2;
        let mut front = Front::connect(&mut world, 2);
        set(&world, false, "state", "5");
        assert_eq!(world.step_back().unwrap(), BackStep::Closing);
        world.disk.inside().figures.sectors = SECTORS;
        if successor {
            assert!(world.succeed().unwrap());
        } else {
            world.back.resize(&mut world.back_bus, SECTORS).unwrap();
        }
        assert_eq!(back_says(&world), "5");
        assert_eq!(world.back_bus.own.borrow()["sectors"], SECTORS.to_string());
        let last = front.pages_of(OP_READ, SECTORS - 8, &[0]);
        assert_eq!(front.ask(&mut world, &last), RSP_OKAY);
        front.end(world);
    }
}

/// The toolstack removes the disk of our front: it says 5, continues while the disk is in use, and
/// then closes.
#[test]
fn a_front_of_ours_in_use_goes_on_until_it_is_not() {
    for setting in settings() {
        let mut world = World::new(setting.back, figures());
        let mut front = FrontVbd::new(HOST, setting.front, true);
        assert_eq!(world.connect(&mut front), [FrontStep::Live]);
        front.set_in_use(true);
        detach(&world);
        assert_eq!(world.connect(&mut front), [FrontStep::StaysInUse]);
        assert_eq!((front.state(), back_says(&world)), (XenbusState::Closing, "5".into()));
        assert!(front.stays() && front.is_live());
        assert!(world.front_bus.own.borrow()["error"].contains("in use"));
        let data = pattern(4096, 4);
        let write = Ask::Write { sector: 8, bytes: &data };
        assert_eq!(world.ask(&mut front, &write).unwrap().0, Ok(()));
        // Also if another back serves it by then.
        assert!(world.succeed().unwrap());
        assert_eq!(world.connect(&mut front), []);
        assert_eq!(world.ask(&mut front, &Ask::Flush).unwrap().0, Ok(()));
        assert!(world.disk.inside().platter[8 * 512..16 * 512] == data);
        front.set_in_use(false);
        assert_eq!(world.connect(&mut front), [FrontStep::Closed]);
        assert_eq!((front.state(), back_says(&world)), (XenbusState::Closed, "6".into()));
        assert!(!world.front_bus.own.borrow().contains_key("error"));
        assert_eq!(world.xen.counts().mapped, 0);
        // It is used again, and no one has it.
        front.set_in_use(true);
        assert_eq!(world.connect(&mut front), []);
        assert_eq!((front.state(), back_says(&world)), (XenbusState::Closed, "6".into()));
        // Until the toolstack thinks better of it.
        set(&world, true, "online", "1");
        assert_eq!(world.connect(&mut front), [FrontStep::Live]);
        drop(front);
    }
}

/// A back that closes by itself is followed, in use or not: it serves nothing any more.
#[test]
fn a_front_of_ours_in_use_follows_a_back_that_closes() {
    for online in ["1", "0"] {
        let mut world = World::new(VbdConfig::default(), figures());
        let mut front = FrontVbd::new(HOST, FrontConfig::default(), true);
        assert_eq!(world.connect(&mut front), [FrontStep::Live]);
        front.set_in_use(true);
        set(&world, true, "online", online);
        let host = world.host.clone();
        world.back.close(&host, &mut world.back_bus, None).unwrap();
        let steps = world.connect(&mut front);
        if online == "1" {
            assert_eq!(steps, [FrontStep::Closed, FrontStep::Live]);
        } else {
            assert_eq!(steps, [FrontStep::Closed]);
            assert_eq!(front.state(), XenbusState::Closed);
        }
        drop(front);
    }
}
