//! Keys of fronts as other systems write them, also beside keys that another driver of the guest
//! left: which rings a back maps, and a successor again.
#![cfg(not(miri))]

use crate::raw_front::RawFront;
use crate::world::{HOST, World, figures, pattern};
use pregrant::GrantRef;
use pregrant::blk::back::VbdConfig;
use pregrant::blk::disk::{Discard, DiskFigures};
use pregrant::blk::features::read_figures;
use pregrant::blk::front::{Ask, FrontConfig, FrontStep, FrontVbd};
use pregrant::platform::{Access, GrantPool};
use pregrant::ring::{AnyOrder, Blkif32, Blkif64};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::{Abi, OP_READ, OP_WRITE, RSP_OKAY, Request, Response};
use std::collections::BTreeMap;

type Keys = BTreeMap<String, String>;

fn of(queues: u32, ring_order: u32) -> FrontConfig {
    FrontConfig { queues, ring_order, ..FrontConfig::default() }
}

#[test]
fn an_order_is_one_key_at_the_top_whatever_the_number_of_queues() {
    let keys = |queues, order| {
        let mut world = World::new(VbdConfig::default(), figures());
        let front = world.front(of(queues, order));
        let own = world.front_bus.own.borrow().clone();
        world.end(front);
        let is_number = |key: &str| key.contains("ring-page-order") || key.contains("num-queues");
        let shown = own.iter().filter(|(key, _)| key.contains("ring-") || key.contains("num-queues"));
        let shown =
            shown.map(|(key, value)| if is_number(key) { format!("{key}={value}") } else { key.clone() });
        shown.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys(1, 0), "ring-ref");
    assert_eq!(keys(1, 1), "ring-page-order=1 ring-ref0 ring-ref1");
    assert_eq!(keys(2, 0), "multi-queue-num-queues=2 queue-0/ring-ref queue-1/ring-ref");
    assert_eq!(
        keys(2, 1),
        "multi-queue-num-queues=2 queue-0/ring-ref0 queue-0/ring-ref1 queue-1/ring-ref0 queue-1/ring-ref1 \
         ring-page-order=1"
    );
}

/// Connects a front with this `config`, whose keys `change` may alter before the back sees them.
/// The guest has granted two pages of data besides, whose references another driver may have left
/// in keys. Returns the back's error, or the key of the first ring that it maps.
fn connects(config: FrontConfig, change: impl Fn(&mut Keys, [GrantRef; 2])) -> Result<String, String> {
    let mut world = World::new(VbdConfig::default(), figures());
    let mut refs = [GrantRef::NONE; 2];
    let data = world.guest.alloc(HOST, Access::ReadWrite, &mut refs).unwrap();
    let held = pattern(8192, 4);
    assert!(data.copy_in(0, &held));
    let is_untouched = || {
        let mut now = vec![0; 8192];
        data.copy_out(0, &mut now) && now == held
    };
    let mut front = FrontVbd::new(HOST, config, false);
    world.step_back().unwrap();
    front.step(&world.guest, &mut world.front_bus).unwrap();
    change(&mut world.front_bus.own.borrow_mut(), refs);
    if let Err(e) = world.step_back() {
        assert!(is_untouched() && world.xen.counts().mapped == 0, "{e}");
        return Err(e.to_string());
    }
    assert_eq!(world.connect(&mut front), [FrontStep::Live]);
    assert_eq!(world.back.shares().len(), config.queues as usize);
    for round in 0..3 {
        let bytes = pattern(4096, round);
        let (write, read) = (Ask::Write { sector: 8, bytes: &bytes }, Ask::Read { sector: 8, sectors: 8 });
        assert_eq!(world.ask(&mut front, &write).unwrap().0, Ok(()));
        assert_eq!(world.ask(&mut front, &read), Ok((Ok(()), bytes.clone())), "round {round}");
        assert!(is_untouched(), "a page of data was taken for a ring");
        // A successor finds rings in use, and the same keys.
        assert!(world.succeed().expect("live rings"));
    }
    let active = world.back_bus.own.borrow()["ring-active"].clone();
    assert!(world.guest.release(data).is_ok());
    world.end(front);
    Ok(active)
}

/// Renames a key of the front's.
fn rename(keys: &mut Keys, from: &str, to: &str) {
    let value = keys.remove(from).unwrap();
    keys.insert(to.into(), value);
}

fn set(keys: &mut Keys, key: &str, value: impl ToString) {
    keys.insert(key.into(), value.to_string());
}

#[test]
fn each_form_of_a_ring_is_found() {
    let ok = |active: &str| Ok(active.to_owned());
    assert_eq!(connects(of(1, 0), |_, _| ()), ok("ring-ref"));
    assert_eq!(connects(of(1, 2), |_, _| ()), ok("ring-ref0"));
    assert_eq!(connects(of(2, 0), |_, _| ()), ok("queue-0/ring-ref"));
    assert_eq!(connects(of(2, 1), |_, _| ()), ok("queue-0/ring-ref0"));
    // An order of 0, with either key.
    assert_eq!(connects(of(1, 0), |keys, _| set(keys, "ring-page-order", 0)), ok("ring-ref"));
    let numbered = |keys: &mut Keys, _| {
        set(keys, "ring-page-order", 0);
        rename(keys, "ring-ref", "ring-ref0");
    };
    assert_eq!(connects(of(1, 0), numbered), ok("ring-ref0"));
    // As our fronts wrote it once.
    let beside = |keys: &mut Keys, _| {
        rename(keys, "ring-page-order", "queue-0/ring-page-order");
        set(keys, "queue-1/ring-page-order", 1);
    };
    assert_eq!(connects(of(2, 1), beside), ok("queue-0/ring-ref0"));
}

#[test]
fn an_empty_value_is_no_value() {
    for empty in ["", "\0", " "] {
        let with = |config, key: &str| connects(config, |keys, _| set(keys, key, empty));
        assert_eq!(with(of(1, 1), "ring-ref").unwrap(), "ring-ref0");
        assert_eq!(with(of(1, 0), "ring-page-order").unwrap(), "ring-ref");
        assert_eq!(with(of(1, 0), "multi-queue-num-queues").unwrap(), "ring-ref");
        for key in ["ring-ref", "event-channel"] {
            let e = with(of(1, 0), key).unwrap_err();
            assert!(e.starts_with(key) && e.contains("the key is missing"), "{e}");
        }
    }
}

#[test]
fn a_number_that_another_driver_left_is_never_the_ring() {
    let ok = |active: &str| Ok(active.to_owned());
    for granted in [true, false] {
        let stale = |refs: [GrantRef; 2], k: usize| if granted { refs[k].0 } else { 99_990 + k as u32 };
        // A boot loader with a page was there before a kernel with several.
        let grub = |keys: &mut Keys, refs| set(keys, "ring-ref", stale(refs, 0));
        assert_eq!(connects(of(1, 1), grub), ok("ring-ref0"));
        assert_eq!(connects(of(2, 0), grub), ok("queue-0/ring-ref"));
        assert_eq!(connects(of(2, 1), grub), ok("queue-0/ring-ref0"));
        // The kernel before a kexec had several pages, or queues, and the next one does not write
        // those keys.
        let pages = |keys: &mut Keys, at: &str, refs| {
            set(keys, "ring-page-order", 1);
            (0..2).for_each(|k| set(keys, &format!("{at}ring-ref{k}"), stale(refs, k)));
        };
        assert_eq!(connects(of(1, 0), |keys, refs| pages(keys, "", refs)), ok("ring-ref"));
        let queues = |keys: &mut Keys, refs| {
            set(keys, "multi-queue-num-queues", 2);
            for k in 0..2 {
                set(keys, &format!("queue-{k}/ring-ref"), stale(refs, k));
                set(keys, &format!("queue-{k}/event-channel"), 1000 + k);
            }
        };
        assert_eq!(connects(of(1, 0), queues), ok("ring-ref"));
        assert_eq!(
            connects(of(1, 1), queues),
            ok("ring-ref0"),
            "its order is also that of the queues that are gone"
        );
        let both = |keys: &mut Keys, refs| {
            queues(keys, refs);
            (0..2).for_each(|k| pages(keys, &format!("queue-{k}/"), refs));
        };
        assert_eq!(connects(of(1, 0), both), ok("ring-ref"));
        // Nothing of an own is there, and what is there is no ring.
        let none = |keys: &mut Keys, refs| {
            rename(keys, "ring-ref0", "x");
            set(keys, "ring-ref", stale(refs, 0));
        };
        let e = connects(of(1, 1), none).unwrap_err();
        assert!(e.starts_with("ring-ref0=: ") && e.contains("is missing"), "{e}");
    }
}

#[test]
fn live_rings_of_a_back_that_kept_no_word_of_them_are_taken_up_as_it_took_them() {
    for (config, beside) in [(of(1, 0), None), (of(1, 1), None), (of(2, 0), None), (of(2, 1), Some(1))] {
        let mut world = World::new(VbdConfig::default(), figures());
        let mut front = world.front(config);
        if let Some(order) = beside {
            let mut own = world.front_bus.own.borrow_mut();
            own.remove("ring-page-order");
            (0..2).for_each(|k| set(&mut own, &format!("queue-{k}/ring-page-order"), order));
        }
        for key in ["ring-active", "protocol-active"] {
            assert!(world.back_bus.own.borrow_mut().remove(key).is_some());
        }
        let bytes = pattern(4096, 5);
        world.ask(&mut front, &Ask::Write { sector: 0, bytes: &bytes }).unwrap().0.unwrap();
        assert!(world.succeed().expect("live rings"));
        assert_eq!(world.ask(&mut front, &Ask::Read { sector: 0, sectors: 8 }), Ok((Ok(()), bytes)));
        world.end(front);
    }
    // It took a key without a number wherever there was one, and a front without `protocol` for one
    // of 64 bits.
    let mut world = World::new(VbdConfig::default(), figures());
    let mut front = RawFront::<Blkif64>::connect(&mut world, 1);
    for key in ["ring-active", "protocol-active"] {
        world.back_bus.own.borrow_mut().remove(key);
    }
    let mut own = world.front_bus.own.borrow_mut();
    own.remove("protocol");
    set(&mut own, "ring-page-order", 0);
    set(&mut own, "ring-ref0", front.refs[0].0);
    drop(own);
    assert!(world.succeed().expect("a live ring"));
    let read = front.pages_of(OP_READ, 8, &[0]);
    assert_eq!(front.ask(&mut world, &read), RSP_OKAY);
    front.end(world);
}

#[test]
fn keys_of_a_live_front_that_name_its_rings_no_more_are_said() {
    let mut world = World::new(VbdConfig::default(), figures());
    let front = world.front(of(1, 1));
    world.front_bus.own.borrow_mut().remove("ring-page-order");
    let e = world.succeed().unwrap_err().to_string();
    assert!(e.contains("ring-ref0") && e.contains("ring-page-order"), "{e}");
    drop(front);
}

/// A page is written and read by a front with this `protocol`, or with none; also with its back's
/// successor.
fn serves<K: AnyOrder<Req = Request, Rsp = Response>>(protocol: Option<&str>) -> String {
    let mut world = World::new(VbdConfig::default(), figures());
    let change = |world: &World| {
        let mut own = world.front_bus.own.borrow_mut();
        own.remove("protocol");
        own.extend(protocol.map(|text| ("protocol".to_owned(), text.to_owned())));
    };
    let mut front = RawFront::<K>::with_keys(&mut world, 1, change);
    for round in 0..3 {
        let bytes = pattern(4096, round);
        assert!(front.pages.copy_in(0, &bytes));
        let write = front.pages_of(OP_WRITE, 8 * round, &[0]);
        assert_eq!(front.ask(&mut world, &write), RSP_OKAY);
        assert_eq!(world.disk.inside().cache[4096 * round as usize..][..4096], bytes);
        assert!(world.succeed().expect("a live ring"));
    }
    let active = world.back_bus.own.borrow()["protocol-active"].clone();
    front.end(world);
    active
}

#[test]
fn a_front_that_does_not_say_its_layout_has_that_of_32_bits_on_x86() {
    for unsaid in [None, Some(""), Some("\0")] {
        let active = if Abi::UNSAID == Abi::X86_32 { serves::<Blkif32> } else { serves::<Blkif64> };
        assert_eq!(active(unsaid), Abi::UNSAID.protocol(), "{unsaid:?}");
    }
    assert_eq!(cfg!(target_arch = "x86_64"), Abi::UNSAID == Abi::X86_32);
    assert_eq!(serves::<Blkif64>(Some("x86_64-abi")), "x86_64-abi");
    assert_eq!(serves::<Blkif64>(Some("arm-abi\0")), "x86_64-abi");
    assert_eq!(serves::<Blkif32>(Some("x86_32-abi")), "x86_32-abi");
}

#[test]
fn a_guest_has_discards_where_the_toolstack_lets_it() {
    let discard = Ask::Discard { sector: 0, sectors: 8, secure: false };
    for (enable, has) in [
        (None, true),
        (Some("1"), true),
        (Some(""), true),
        (Some("no"), true),
        (Some("0"), false),
        (Some("0\0"), false),
    ] {
        let mut world = World::new(VbdConfig::default(), figures());
        let own = &world.back_bus.own;
        own.borrow_mut().extend(enable.map(|text| ("discard-enable".to_owned(), text.to_owned())));
        let mut front = world.front(FrontConfig::default());
        assert_eq!(front.figures().unwrap().discard.is_some(), has, "{enable:?}");
        assert_eq!(world.back_bus.own.borrow().contains_key("feature-discard"), has, "{enable:?}");
        assert_eq!(world.ask(&mut front, &discard).unwrap().0.is_ok(), has, "{enable:?}");
        assert!(world.succeed().expect("a live ring"));
        assert_eq!(world.ask(&mut front, &discard).unwrap().0.is_ok(), has, "{enable:?}");
        world.end(front);
    }
}

#[test]
fn discarded_sectors_read_as_zeroes_where_a_back_says_so_and_not_where_it_says_nothing() {
    let reads_zeroes = |text: Option<&str>| {
        let mut world = World::new(VbdConfig::default(), figures());
        let front = world.front(FrontConfig::default());
        assert_eq!(world.back_bus.own.borrow().get("discard-zeroes").map(String::as_str), Some("1"));
        // As another system's back has it, or one that has gone mad.
        world.back_bus.own.borrow_mut().remove("discard-zeroes");
        world.back_bus.own.borrow_mut().extend(text.map(|text| ("discard-zeroes".into(), text.into())));
        let figures = read_figures(&mut world.front_bus).unwrap();
        world.end(front);
        figures.discard.expect("it discards").zeroes
    };
    for (text, zeroes) in
        [(None, false), (Some(""), false), (Some("0"), false), (Some("yes"), false), (Some("1\0"), true)]
    {
        assert_eq!(reads_zeroes(text), zeroes, "{text:?}");
    }
    // A disk that makes no promise.
    let discard = figures().discard.map(|discard| Discard { zeroes: false, ..discard });
    let mut world = World::new(VbdConfig::default(), DiskFigures { discard, ..figures() });
    let front = world.front(FrontConfig::default());
    assert_eq!(front.figures().unwrap().discard, discard);
    world.end(front);
}

#[test]
fn long_sectors_are_announced_only_where_they_are_requested_and_understood() {
    let own = DiskFigures { sector_size: 4096, physical_sector_size: 4096, ..figures() };
    let sector_size = |native_sectors, counts_in_them: &str| {
        let mut world = World::new(VbdConfig { native_sectors, ..VbdConfig::default() }, own);
        set(&mut world.front_bus.own.borrow_mut(), "feature-large-sector-size", counts_in_them);
        let mut front = world.front(FrontConfig::default());
        let shown = *front.figures().unwrap();
        assert_eq!((shown.physical_sector_size, shown.sectors), (4096, own.sectors));
        let odd = Ask::Write { sector: 3, bytes: &[7; 512] };
        let takes =
            |world: &mut World, front: &mut _| world.ask(front, &odd).is_ok_and(|done| done.0.is_ok());
        assert_eq!(takes(&mut world, &mut front), shown.sector_size == 512);
        // Whatever a successor would offer another guest, this one knows its figures.
        for native_sectors in [true, false] {
            world.config.native_sectors = native_sectors;
            assert!(world.succeed().expect("a live ring"));
            assert_eq!(takes(&mut world, &mut front), shown.sector_size == 512);
        }
        world.end(front);
        shown.sector_size
    };
    assert_eq!(sector_size(false, "0"), 512);
    assert_eq!(sector_size(false, "1"), 512);
    assert_eq!(sector_size(true, "0"), 4096);
    assert_eq!(sector_size(true, ""), 4096);
    assert_eq!(sector_size(true, "1"), 512);
}
