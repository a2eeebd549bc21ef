//! A successor gives a guest the same image as before, or none: while no back ran, the image's name
//! may have been given to another one.
#![cfg(not(miri))]

use crate::world::{HOST, World, figures, pattern};
use pregrant::blk::back::VbdConfig;
use pregrant::blk::front::{Ask, FrontConfig, FrontStep, FrontVbd};
use pregrant::platform::local::LocalDomain;
use pregrant::shm::SharedBytes;
use pregrant::xenbus::XenbusState;
use pregrant::xenbus::connect_error::ConnectError;

fn own(world: &World, key: &str, value: &str) {
    world.back_bus.own.borrow_mut().insert(key.into(), value.into());
}

/// A front that reconnects after a close.
fn front(world: &mut World) -> FrontVbd<LocalDomain> {
    let mut front = FrontVbd::new(HOST, FrontConfig::default(), true);
    assert_eq!(world.connect(&mut front), [FrontStep::Live]);
    front
}

/// A guest with a disk that is called so.
fn world(name: &str) -> (World, FrontVbd<LocalDomain>) {
    let mut world = World::new(VbdConfig::default(), figures());
    own(&world, "params", name);
    let front = front(&mut world);
    (world, front)
}

/// The back that could not take over the disk closes it; the guest tries once more.
fn closed_and_tried(world: &mut World, front: &mut FrontVbd<LocalDomain>) -> Result<(), String> {
    let host = world.host.clone();
    world.back.close(&host, &mut world.back_bus, Some("refused")).unwrap();
    let mut closed = false;
    for _ in 0..16 {
        closed |= front.step(&world.guest, &mut world.front_bus).unwrap() == FrontStep::Closed;
        world.step_back().map_err(|e| e.to_string())?;
        if closed && front.state() == XenbusState::Connected {
            return Ok(());
        }
    }
    panic!("it is neither refused nor connected");
}

#[test]
fn a_successor_gives_a_mounted_guest_no_other_image() {
    type Change = fn(&World);
    let changes: [(Change, Change, &str); 2] = [
        // Another file was moved there.
        (
            |world| world.disk.inside().identity = Some("file 8".into()),
            |world| world.disk.inside().identity = Some("file 7".into()),
            "file 8",
        ),
        // The toolstack calls it otherwise.
        (|world| own(world, "params", "/b"), |world| own(world, "params", "/a"), "/b is not the image"),
    ];
    for (change, undo, says) in changes {
        let (mut world, mut front) = world("/a");
        world.disk.inside().identity = Some("file 7".into());
        // Its record is as of now.
        front.close(&mut world.front_bus, None).unwrap();
        world.connect(&mut front);
        drop(front);
        world.front_bus.own.borrow_mut().insert("state".into(), "1".into());
        let mut front = self::front(&mut world);
        // A write that no one has answered.
        world.disk.inside().by_hand = true;
        let data = pattern(4096, 5);
        front.submit(&world.guest, 0, &Ask::Write { sector: 8, bytes: &data }, 1).unwrap();
        front.publish(&world.guest, 0);
        world.poll_back();
        assert_eq!(world.disk.inside().waiting(), 1);
        // It is the same, for one successor.
        assert!(world.succeed().unwrap());
        world.poll_back();

        change(&world);
        let before = world.disk.inside().cache.clone();
        world.disk.log();
        let refused = world.succeed();
        let Err(ConnectError::Unready(why)) = refused else { panic!("{refused:?}") };
        for part in [says, "file 7", "detach and attach"] {
            assert!(why.contains(part), "no {part:?}: {why}");
        }
        assert_eq!(world.xen.counts().mapped, 0);
        // Nor by a front that comes again with what it has in its hands; not of this process, nor
        // of another.
        let why = closed_and_tried(&mut world, &mut front).unwrap_err();
        assert!(why.contains(says), "{why}");
        let why = closed_and_tried(&mut world, &mut front).unwrap_err();
        assert!(why.contains(says), "{why}");
        assert_eq!(world.disk.log(), [], "the disk was asked");
        assert!(world.disk.inside().cache == before);

        // The right one is there again.
        undo(&world);
        world.disk.inside().by_hand = false;
        closed_and_tried(&mut world, &mut front).unwrap();
        assert!(world.ask(&mut front, &Ask::Read { sector: 8, sectors: 8 }).unwrap().0.is_ok());
        world.end(front);
    }
}

/// Records of another version than the successor knows: it asks the disk for nothing, and leaves
/// ring and records to a back that knows them.
#[test]
fn a_record_of_an_unknown_version_is_refused_with_words_and_left() {
    for (record, name, magic, version) in
        [("image", "record of the image", 0, 28), ("0/journal", "journal", 8, 16)]
    {
        for (at, wrong, found) in [
            (version, 2, "version 2, and this program reads versions up to 1"),
            (magic, u32::from_le_bytes(*b"PG?9"), "its first word is 0x393f4750"),
        ] {
            let (mut world, mut front) = world("/a");
            world.disk.inside().by_hand = true;
            let data = pattern(4096, 5);
            front.submit(&world.guest, 0, &Ask::Write { sector: 8, bytes: &data }, 1).unwrap();
            front.publish(&world.guest, 0);
            world.poll_back();
            let kept = world.kept(record);
            assert_eq!(kept.load_u32(version), Some(1));
            let right = kept.load_u32(at).unwrap();
            assert!(kept.store_u32(at, wrong));
            world.disk.log();
            let refused = world.succeed();
            let Err(e @ ConnectError::Unknown(_)) = refused else { panic!("{record}: {refused:?}") };
            let text = e.to_string();
            for part in [name, found, "start the version of pregrant that wrote it", "detach and attach"] {
                assert!(text.contains(part), "no {part:?}: {text}");
            }
            assert!(e.is_for_another());
            assert_eq!((world.xen.counts().mapped, world.disk.log()), (0, vec![]), "the disk was asked");
            assert_eq!(kept.load_u32(at), Some(wrong));
            // With the right word; or of before there were versions, where no checksum has it.
            for good in [right, if at == version && record != "image" { 0 } else { right }] {
                assert!(kept.store_u32(at, good));
                assert!(world.succeed().unwrap());
                world.poll_back();
            }
            world.disk.inside().by_hand = false;
            world.poll_back();
            drop(front);
        }
    }
}

/// Changes a record to the form from before versions, which is read as version 1.
fn unversion(record: &pregrant::platform::local::Pages) {
    assert!(record.store_u32(28, 0));
    let text = (record.load_u32(20).unwrap() + record.load_u32(24).unwrap()).next_multiple_of(4) as usize;
    let others = (0..8 + text / 4).filter(|word| *word != 1).map(|word| record.load_u32(4 * word).unwrap());
    let sum = others
        .fold(0x1505_u64, |h, w| (h ^ u64::from(w)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29));
    assert!(record.store_u32(4, (sum ^ sum >> 32) as u32));
}

/// A process that dies while it writes the record would leave none, and the guest would lose its
/// disk. So a successor with the same image does not write it.
#[test]
fn a_successor_of_the_same_image_does_not_write_the_record() {
    let (mut world, front) = world("/a");
    unversion(&world.kept("image"));
    assert!(world.succeed().unwrap());
    assert_eq!(world.kept("image").load_u32(28), Some(0), "it was written once more");
    assert!(world.succeed().unwrap());
    world.end(front);
}

/// A guest that was refused another image is not given it by a program that cannot read that.
#[test]
fn an_unknown_record_refuses_a_new_connection_too() {
    let (mut world, mut front) = world("/a");
    assert!(world.kept("image").store_u32(28, 2));
    let why = closed_and_tried(&mut world, &mut front).unwrap_err();
    assert!(why.contains("record of the image") && why.contains("version 2"), "{why}");
    assert!(world.kept("image").store_u32(28, 1));
    closed_and_tried(&mut world, &mut front).unwrap();
}

#[test]
fn a_cd_that_was_changed_is_given_to_a_front_that_comes_again() {
    for by_name in [true, false] {
        let (mut world, mut front) = world("/cd1");
        own(&world, "device-type", "cdrom");
        assert!(world.succeed().unwrap());
        if by_name {
            own(&world, "params", "/cd2");
        } else {
            world.disk.inside().identity = Some("another medium".into());
        }
        assert!(matches!(world.succeed(), Err(ConnectError::Unready(_))), "its guest has read the other");
        closed_and_tried(&mut world, &mut front).unwrap();
        assert!(world.succeed().unwrap());
        world.end(front);
    }
}

#[test]
fn a_cd_that_was_taken_out_is_waited_for_by_a_front_that_comes_again() {
    let (mut world, mut front) = world("/cd1");
    own(&world, "device-type", "cdrom");
    own(&world, "params", "");
    let refused = world.succeed();
    let Err(ConnectError::Unready(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("medium was taken out"), "{why}");
    let host = world.host.clone();
    world.back.close(&host, &mut world.back_bus, Some(&why)).unwrap();
    for _ in 0..8 {
        front.step(&world.guest, &mut world.front_bus).unwrap();
        world.step_back().unwrap();
    }
    assert_eq!((front.state(), world.back.state()), (XenbusState::Initialised, XenbusState::InitWait));
    own(&world, "params", "/cd2");
    for _ in 0..8 {
        front.step(&world.guest, &mut world.front_bus).unwrap();
        world.step_back().unwrap();
    }
    assert_eq!(front.state(), XenbusState::Connected);
    world.end(front);
}

/// How a connection can have no record of its image, although the image stays the same.
enum Missing {
    /// The record's memory was lost, and there is new memory.
    Lost,
    /// There was no memory for a record since the guest connected.
    NoMemory,
    /// The memory that there is is shorter than a record.
    Short,
    /// The record is of an earlier connection, because the back of this one could not write one.
    OfAnother,
    /// The writer died while it wrote the record.
    Torn,
}

#[test]
fn without_a_record_of_the_connection_no_successor_takes_it_up() {
    use Missing::*;
    for missing in [Lost, NoMemory, Short, OfAnother, Torn] {
        let (mut world, mut front) = world("/a");
        world.disk.inside().identity = Some("file 7".into());
        world.limit_kept(match missing {
            NoMemory => 0,
            Short => 4096,
            Lost | OfAnother | Torn => usize::MAX,
        });
        if let Short = missing {
            world.lose_kept("image");
        }
        let earlier = matches!(missing, OfAnother).then(|| {
            let mut bytes = vec![0; world.kept("image").len()];
            assert!(world.kept("image").copy_out(0, &mut bytes));
            bytes
        });
        // A new connection is served, with a record or without.
        front.close(&mut world.front_bus, None).unwrap();
        world.connect(&mut front);
        drop(front);
        world.front_bus.own.borrow_mut().insert("state".into(), "1".into());
        let mut front = self::front(&mut world);
        assert!(world.ask(&mut front, &Ask::Flush).unwrap().0.is_ok());
        match missing {
            Lost => world.lose_kept("image"),
            OfAnother => assert!(world.kept("image").copy_in(0, &earlier.unwrap())),
            Torn => assert!(world.kept("image").copy_in(32, b"/?")),
            NoMemory | Short => {}
        }
        world.disk.log();
        // Nor is it later, when there is memory again.
        for limit in [None, Some(usize::MAX)] {
            if let (Some(limit), NoMemory | Short) = (limit, &missing) {
                world.limit_kept(limit);
                world.lose_kept("image");
            }
            let refused = world.succeed();
            let Err(ConnectError::Unready(why)) = refused else { panic!("{refused:?}") };
            for part in ["no record says which image", "/a (file 7)", "detach and attach"] {
                assert!(why.contains(part), "no {part:?}: {why}");
            }
        }
        // A front that comes again may have the other one mounted.
        let why = closed_and_tried(&mut world, &mut front).unwrap_err();
        assert!(why.contains("no record says which image"), "{why}");
        assert_eq!((world.disk.log(), world.xen.counts().mapped), (vec![], 0), "the disk was asked");
        drop(front);
    }
}

#[test]
fn a_cd_of_which_there_is_no_record_is_given_to_a_front_that_comes_again() {
    let (mut world, mut front) = world("/cd1");
    own(&world, "device-type", "cdrom");
    world.lose_kept("image");
    assert!(matches!(world.succeed(), Err(ConnectError::Unready(_))));
    closed_and_tried(&mut world, &mut front).unwrap();
    world.end(front);
}

#[test]
fn an_image_without_an_identity_is_known_by_its_name() {
    let (mut world, mut front) = world("/a");
    world.disk.inside().identity = None;
    front.close(&mut world.front_bus, None).unwrap();
    world.connect(&mut front);
    drop(front);
    world.front_bus.own.borrow_mut().insert("state".into(), "1".into());
    let mut front = self::front(&mut world);
    assert!(world.succeed().unwrap());
    assert!(world.ask(&mut front, &Ask::Flush).unwrap().0.is_ok());
    own(&world, "params", "/b");
    assert!(matches!(world.succeed(), Err(ConnectError::Unready(_))));
    drop(front);
}
