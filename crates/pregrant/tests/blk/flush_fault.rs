//! A flush that failed must not be forgotten: Linux reports a lost write-back only once for each
//! open file.
#![cfg(not(miri))]

use crate::world::{HOST, World, figures};
use pregrant::blk::back::VbdConfig;
use pregrant::blk::disk::IoError;
use pregrant::blk::front::{Answer, Ask, FrontConfig, FrontStep, FrontVbd};
use pregrant::platform::local::LocalDomain;

const WRITE: Ask<'_> = Ask::Write { sector: 0, bytes: &[7; 512] };

fn by(
    world: &mut World,
    front: &mut FrontVbd<LocalDomain>,
    queue: usize,
    ask: &Ask<'_>,
) -> Result<(), IoError> {
    front.submit(&world.guest, queue, ask, 5).unwrap();
    front.publish(&world.guest, queue);
    world.poll_back();
    world.poll_back();
    let mut outcome = None;
    front.take(&world.guest, queue, |a: Answer<'_, LocalDomain>| outcome = Some(a.outcome)).unwrap();
    outcome.expect("an answer")
}

#[test]
fn a_failed_flush_fails_all_others_until_the_guest_connects_again() {
    let mut world = World::new(VbdConfig::default(), figures());
    let mut front = FrontVbd::new(HOST, FrontConfig { queues: 2, ..FrontConfig::default() }, true);
    assert_eq!(world.connect(&mut front), [FrontStep::Live]);
    assert_eq!((by(&mut world, &mut front, 0, &Ask::Flush), world.back.flush_failed()), (Ok(()), false));

    // Once, on one queue.
    world.disk.inside().fails = Some(IoError::Failed);
    assert_eq!(by(&mut world, &mut front, 0, &Ask::Flush), Err(IoError::Failed));
    world.disk.inside().fails = None;
    for successors in 0..3 {
        for queue in 0..2 {
            assert_eq!(by(&mut world, &mut front, queue, &Ask::Flush), Err(IoError::Failed), "{successors}");
            assert_eq!(by(&mut world, &mut front, queue, &WRITE), Ok(()));
        }
        assert!(world.back.flush_failed());
        assert!(world.succeed().unwrap());
    }
    // Another connection begins with what is on the disk.
    front.close(&mut world.front_bus, None).unwrap();
    world.connect(&mut front);
    drop(front);
    world.front_bus.own.borrow_mut().insert("state".into(), "1".into());
    let mut front = world.front(FrontConfig::default());
    assert_eq!((by(&mut world, &mut front, 0, &Ask::Flush), world.back.flush_failed()), (Ok(()), false));
    assert!(world.succeed().unwrap());
    assert_eq!((by(&mut world, &mut front, 0, &Ask::Flush), world.back.flush_failed()), (Ok(()), false));
    world.end(front);
}

/// The disk reports a failure of one of two flushes, and has ended the other one before.
#[test]
fn a_flush_that_ended_beside_a_failed_one_fails_too() {
    let mut world = World::new(VbdConfig::default(), figures());
    let mut front = world.front(FrontConfig::default());
    world.disk.inside().by_hand = true;
    (0..2).for_each(|_| front.submit(&world.guest, 0, &Ask::Flush, 5).unwrap());
    front.publish(&world.guest, 0);
    world.poll_back();
    {
        let mut disk = world.disk.inside();
        assert_eq!(disk.waiting(), 2);
        disk.do_one(1);
        disk.fails = Some(IoError::Failed);
        disk.do_one(0);
        (disk.fails, disk.by_hand) = (None, false);
    }
    world.poll_back();
    let mut outcomes = Vec::new();
    front.take(&world.guest, 0, |a: Answer<'_, LocalDomain>| outcomes.push(a.outcome)).unwrap();
    assert_eq!(outcomes, [Err(IoError::Failed); 2]);
    world.end(front);
}

/// A disk that does not support flushes has lost nothing.
#[test]
fn a_flush_that_the_disk_does_not_know_is_no_fault() {
    let mut world = World::new(VbdConfig::default(), figures());
    let mut front = world.front(FrontConfig::default());
    world.disk.inside().fails = Some(IoError::NotSupported);
    assert_eq!(by(&mut world, &mut front, 0, &Ask::Flush), Err(IoError::NotSupported));
    world.disk.inside().fails = Some(IoError::Failed);
    assert_eq!(by(&mut world, &mut front, 0, &WRITE), Err(IoError::Failed));
    world.disk.inside().fails = None;
    assert_eq!((by(&mut world, &mut front, 0, &Ask::Flush), world.back.flush_failed()), (Ok(()), false));
    world.end(front);
}
