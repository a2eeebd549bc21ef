//! Pages that a back keeps mapped: mapped when first seen, up to a limit, the least recently used
//! unmapped first, and never one that is in use.
#![cfg(not(miri))]

use crate::raw_front::RawFront;
use crate::world::{Setting, World, figures};
use pregrant::blk::front::Ask;
use pregrant::blk::path::PathName;
use pregrant::blk::path::persistent::back::PURGE_EACH_NS;
use pregrant::platform::{Access, GrantPool};
use pregrant::ring::Blkif64;
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{Abi, OP_READ, OP_WRITE, RSP_ERROR, RSP_OKAY};
use pregrant::xenbus::BackDevice;
use pregrant::xenbus::back::PageShare;

fn world(limit: usize) -> World {
    let mut back = Setting::of(PathName::Persistent, Abi::X86_64).back;
    back.persistent_pages = limit;
    let world = World::new(back, figures());
    world.xen.stop_clock(1);
    world
}

#[test]
fn a_page_is_mapped_once_and_a_full_store_is_no_error() {
    let mut world = world(20);
    let mut front = RawFront::<Blkif64>::connect(&mut world, 40);
    for round in 0..3 {
        let before = world.xen.counts();
        for page in 0..20 {
            assert_eq!(front.ask(&mut world, &front.pages_of(OP_WRITE, 8, &[page])), RSP_OKAY);
        }
        assert_eq!(world.xen.counts().since(&before).maps, if round == 0 { 20 } else { 0 });
        assert_eq!(world.back.shares()[0].kept_pages(), 20);
    }
    // One more: mapped for its request, and then one page in 20 is let go of, the one that was used
    // first.
    assert_eq!(front.ask(&mut world, &front.pages_of(OP_READ, 8, &[20])), RSP_OKAY);
    assert_eq!((world.back.shares()[0].kept_pages(), world.back.shares()[0].overflows()), (19, 1));
    let before = world.xen.counts();
    for page in (1..20).chain([20]) {
        assert_eq!(front.ask(&mut world, &front.pages_of(OP_WRITE, 8, &[page])), RSP_OKAY);
    }
    assert_eq!(world.xen.counts().since(&before).maps, 1, "only page 20 is new");
    // Not again before its time.
    for page in 21..40 {
        assert_eq!(front.ask(&mut world, &front.pages_of(OP_WRITE, 8, &[page])), RSP_OKAY);
        assert_eq!(world.back.shares()[0].kept_pages(), 20);
    }
    world.xen.stop_clock(1 + PURGE_EACH_NS);
    let before = world.back.shares()[0].overflows();
    assert_eq!(front.ask(&mut world, &front.pages_of(OP_WRITE, 8, &[0])), RSP_OKAY);
    let share = &world.back.shares()[0];
    assert_eq!((share.kept_pages(), share.overflows()), (20, before), "one goes before others are searched");
    front.end(world);
}

#[test]
fn a_page_in_use_is_never_let_go_of() {
    let mut world = world(4);
    let mut front = RawFront::<Blkif64>::connect(&mut world, 12);
    // Some were seen before, and some were not.
    assert_eq!(front.ask(&mut world, &front.pages_of(OP_READ, 0, &[1, 2])), RSP_OKAY);
    world.disk.inside().by_hand = true;
    front.push(&front.pages_of(OP_READ, 0, &[0, 1, 2, 3]));
    front.publish();
    world.poll_back();
    // Others find it full; a lower limit has to wait for those in use, too.
    front.push(&front.pages_of(OP_READ, 64, &[4, 5, 6, 7]));
    front.publish();
    world.poll_back();
    assert_eq!(world.back.shares()[0].kept_pages(), 4);
    let host = world.host.clone();
    world.back.allow_pages(&host, PageShare { pages: 0, lasting: usize::MAX });
    world.poll_back();
    assert_eq!((world.back.shares()[0].kept_pages(), world.xen.counts().mapped), (4, 1 + 4 + 4));
    while world.disk.inside().do_one(1) {}
    world.poll_back();
    assert_eq!(front.answers().len(), 2);
    let disk = world.disk.inside().cache.clone();
    let mut page = [0; 4096];
    for (k, sector) in [(0, 0), (3, 24), (4, 64), (7, 88)] {
        assert!(front.pages.copy_out(k * 4096, &mut page) && page == disk[sector * 512..][..4096]);
    }
    assert_eq!(world.xen.counts().mapped, 1, "nothing but the ring");
    front.end(world);
}

/// References whose hashes collide, as a guest can choose them: each causes one map, and no more
/// pages are mapped than the guest is charged for.
#[test]
fn references_that_meet_are_mapped_once_each() {
    const LIMIT: usize = 20;
    let mut world = world(LIMIT);
    let mut front = RawFront::<Blkif64>::connect(&mut world, 4096);
    // As in the store: places for four times as many; 16 of them are checked.
    let start = |gref: u32| (u64::from(gref).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 128;
    let first = start(front.refs[0].0);
    let meet: Vec<usize> = (0..4096).filter(|k| start(front.refs[*k].0) == first).take(LIMIT).collect();
    assert_eq!(meet.len(), LIMIT);
    for page in &meet[..16] {
        assert_eq!(front.ask(&mut world, &front.pages_of(OP_WRITE, 8, &[*page])), RSP_OKAY);
    }
    let before = world.xen.counts();
    assert_eq!(front.ask(&mut world, &front.pages_of(OP_WRITE, 8, &meet[16..])), RSP_OKAY);
    assert_eq!(world.back.shares()[0].overflows(), 4);
    let after = world.xen.counts();
    assert_eq!((after.since(&before).maps, after.most_mapped), (4, 1 + 16 + 4));
    front.end(world);
}

#[test]
fn a_page_that_is_granted_to_be_read_can_be_written_to_the_disk() {
    let mut world = world(20);
    let mut front = RawFront::<Blkif64>::connect(&mut world, 2);
    let mut refs = [pregrant::GrantRef::NONE];
    let read_only = world.guest.alloc(crate::world::HOST, Access::ReadOnly, &mut refs).unwrap();
    assert!(read_only.copy_in(0, &[0x5a; 4096]));
    let own = std::mem::replace(&mut front.refs[0], refs[0]);
    assert_eq!(front.ask(&mut world, &front.pages_of(OP_WRITE, 8, &[0, 1])), RSP_OKAY);
    assert_eq!(front.ask(&mut world, &front.pages_of(OP_READ, 8, &[0])), RSP_ERROR);
    assert!(world.disk.inside().cache[4096..8192] == [0x5a; 4096]);
    assert_eq!(world.back.shares()[0].kept_pages(), 1);
    front.refs[0] = own;
    assert!(world.guest.release(read_only).is_ok(), "it is not kept");
    front.end(world);
}

#[test]
fn a_front_uses_the_pages_that_came_back_last() {
    let setting = Setting::of(PathName::Persistent, Abi::X86_64);
    let mut world = World::new(setting.back, figures());
    let mut front = world.front(setting.front);
    for k in 0..50 {
        world.ask(&mut front, &Ask::Write { sector: k, bytes: &[1; 8192] }).unwrap().0.unwrap();
        world.ask(&mut front, &Ask::Read { sector: k, sectors: 3 }).unwrap().0.unwrap();
        assert_eq!(world.back.shares()[0].kept_pages(), 2);
    }
    world.end(front);
}
