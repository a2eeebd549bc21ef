//! A disk that is in use when it should be removed: its front goes to state 5 and continues to use
//! it, and so does its back, or the back's successor.

use crate::guest::ask;
use crate::{served, ways, work};
use pregrant::blk::front::FrontConfig;
use pregrant::xenbus::Side;
use pregrant_host::drivers::blk::front::shared_disk::DiskOp;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// `xl block-detach` of a mounted disk, whose backend is killed and stopped meanwhile.
pub fn a_disk_in_use_outlives_its_detach() {
    for (io, path, config) in ways() {
        let (image, mut world, mut back, guest) = served(io, path, config);
        guest.disk().begin_use();
        world.ask_for_removal();
        world.until_states([Some("5"), Some("5")]);
        let (mut turns, mut ends) = (0, 0);
        work(&image, &guest, 200, || {
            turns += 1;
            if turns % 20 == 0 && ends < 5 {
                ends += 1;
                if ends % 2 == 0 {
                    back.stop()
                } else {
                    back.kill()
                }
                back = world.back(io, path, None);
            }
            assert_eq!(world.states(), [Some("5".into()), Some("5".into())], "{io}, {path}");
        });
        assert!(ends > 0, "the work was over before a back died");
        // It is unmounted: now it goes, and stays gone.
        guest.disk().end_use();
        world.until_states([Some("6"), Some("6")]);
        assert_eq!(guest.die(), 0, "{io}, {path}: requests that the guest had to ask again");
        world.end(back);
    }
}

/// No program has the disk open, but written data was not flushed.
pub fn what_was_written_is_flushed_before_a_disk_goes() {
    let (image, mut world, back, guest) = served("uring", "copy", FrontConfig::default());
    ask(guest.disk(), DiskOp::Write { at: 4096, bytes: vec![7; 4096] }).unwrap();
    world.ask_for_removal();
    world.until_states([Some("6"), Some("6")]);
    let mut bytes = vec![0; 4096];
    image.file().read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!(bytes, [7; 4096]);
    while guest.is_dirty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(guest.die(), 0);
    world.end(back);
}

/// In a driver domain that domain removes the back's directory, and the toolstack removes the
/// front's: neither waits for the other.
pub fn a_front_ends_whichever_directory_goes_last() {
    for first in [Side::Front, Side::Back] {
        let (_image, mut world, back, guest) = served("uring", "copy", FrontConfig::default());
        world.ask_for_removal();
        world.until_states([Some("6"), Some("6")]);
        world.remove_side(first);
        // Long enough for the front to have seen it. A machine that is busy makes it less strict
        // and not wrong.
        std::thread::sleep(Duration::from_millis(200));
        world.remove_side(if first == Side::Front { Side::Back } else { Side::Front });
        guest.until_removed();
        world.finish(back);
    }
}

/// A back that is asked to close its disks leaves those that are in use to the next one.
pub fn a_disk_in_use_outlives_a_back_that_closes() {
    let (_image, mut world, mut back, guest) = served("uring", "copy", FrontConfig::default());
    guest.disk().begin_use();
    world.ask_for_removal();
    world.until_states([Some("5"), Some("5")]);
    ask(guest.disk(), DiskOp::Write { at: 0, bytes: vec![3; 512] }).unwrap();
    back.begin_to_close();
    assert!(back.ended_well());
    assert_eq!(world.states(), [Some("5".into()), Some("5".into())]);
    let back = world.back("uring", "copy", None);
    assert_eq!(ask(guest.disk(), DiskOp::Read { at: 0, len: 512 }), Ok(vec![3; 512]));
    guest.disk().end_use();
    world.until_states([Some("6"), Some("6")]);
    assert_eq!(guest.die(), 0);
    world.end(back);
}
