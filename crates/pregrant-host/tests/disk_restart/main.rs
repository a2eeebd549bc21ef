//! A disk's back dies, another one takes over the live rings, and the guest finds what it wrote: no
//! request fails, the guest sends none twice, and no write of the dead process reaches the disk
//! after its successor's.
//!
//! The binary starts itself as `child SOCKET IO PATH`, a real backend with images that are files.
//! Tests run one after the other.

mod back;
mod closing;
mod guest;
mod slow;
mod world;

use guest::{Guest, ask, hammer};
use pregrant::blk::disk::IoError;
use pregrant::blk::front::FrontConfig;
use pregrant_host::drivers::blk::front::shared_disk::DiskOp;
use pregrant_test_machine::one_by_one;
use pregrant_testkit::skip::skip;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;
use world::{Back, Image, World};

/// Crash points of a ring whose answers come in any order.
const POINTS: [&str; 4] = ["mid-frame", "in-responses", "before-publish", "before-notify"];
/// Length of a test's image in bytes; several threads work on a part of it each.
const BYTES: u64 = 4 << 20;
const THREADS: u64 = 6;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [child, socket, io, path] = args.as_slice()
        && child == "child"
    {
        return back::play(Path::new(socket), io, path);
    }
    let tests: [(&str, fn()); 21] = [
        ("a_disk_in_use_outlives_its_detach", closing::a_disk_in_use_outlives_its_detach),
        (
            "what_was_written_is_flushed_before_a_disk_goes",
            closing::what_was_written_is_flushed_before_a_disk_goes,
        ),
        ("a_front_ends_whichever_directory_goes_last", closing::a_front_ends_whichever_directory_goes_last),
        ("a_disk_in_use_outlives_a_back_that_closes", closing::a_disk_in_use_outlives_a_back_that_closes),
        ("a_disk_goes_on_after_a_crash_at_each_point", a_disk_goes_on_after_a_crash_at_each_point),
        ("a_disk_goes_on_after_kills_and_stops", a_disk_goes_on_after_kills_and_stops),
        (
            "a_successor_waits_for_the_last_write_of_a_dead_back",
            slow::a_successor_waits_for_the_last_write_of_a_dead_back,
        ),
        ("a_disk_that_hangs_holds_no_one_but_its_guest", slow::a_disk_that_hangs_holds_no_one_but_its_guest),
        ("reads_that_hang_do_not_pile_up", slow::reads_that_hang_do_not_pile_up),
        ("a_disk_that_hangs_is_said", slow::a_disk_that_hangs_is_said),
        (
            "an_image_whose_file_system_is_silent_is_busy_and_no_more",
            slow::an_image_whose_file_system_is_silent_is_busy_and_no_more,
        ),
        (
            "a_silent_file_system_has_one_open_however_often_a_front_comes",
            slow::a_silent_file_system_has_one_open_however_often_a_front_comes,
        ),
        (
            "direct_io_that_is_refused_later_is_given_up_for_the_whole_image",
            slow::direct_io_that_is_refused_later_is_given_up_for_the_whole_image,
        ),
        ("what_a_disk_cannot_do_is_an_error_and_no_more", what_a_disk_cannot_do_is_an_error_and_no_more),
        ("a_guest_keeps_the_image_that_it_had", a_guest_keeps_the_image_that_it_had),
        (
            "a_disk_that_is_attached_again_has_the_image_that_it_names",
            a_disk_that_is_attached_again_has_the_image_that_it_names,
        ),
        (
            "a_guest_waits_for_an_image_that_is_not_there_yet",
            a_guest_waits_for_an_image_that_is_not_there_yet,
        ),
        ("a_guest_is_notified_of_another_length", a_guest_is_notified_of_another_length),
        ("a_discard_reaches_the_file", a_discard_reaches_the_file),
        ("a_guest_that_dies_leaves_nothing_mapped", a_guest_that_dies_leaves_nothing_mapped),
        ("the_end_of_the_loop_is_not_slept_over", guest::the_end_of_the_loop_is_not_slept_over),
    ];
    let tests = tests.iter().map(|(name, test)| (name.to_string(), test as &dyn Fn()));
    one_by_one::run(tests.collect(), one_by_one::Leaves::Anything, || {});
}

/// Several threads write, read and flush, each its part, while `meanwhile` has its way with the
/// backs; then the file is what they wrote.
fn work(image: &Image, guest: &Guest, ops: u32, mut meanwhile: impl FnMut()) {
    let part = BYTES / THREADS / 4096 * 4096;
    let mut models: Vec<Vec<u8>> = (0..THREADS).map(|_| vec![0; part as usize]).collect();
    std::thread::scope(|s| {
        let workers: Vec<_> = models
            .iter_mut()
            .enumerate()
            .map(|(k, model)| s.spawn(move || hammer(guest.disk(), k as u64 * part, model, ops)))
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            meanwhile();
            std::thread::sleep(Duration::from_millis(2));
        }
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    ask(guest.disk(), DiskOp::Flush).unwrap();
    for (k, model) in models.iter().enumerate() {
        let mut bytes = vec![0; model.len()];
        image.file().read_exact_at(&mut bytes, k as u64 * part).unwrap();
        assert!(bytes == *model, "the file has not what thread {k} wrote");
    }
}

/// How a front moves its bytes: name, path of the back without persistent grants, and the front's
/// settings.
fn ways() -> [(&'static str, &'static str, FrontConfig); 3] {
    let plain = FrontConfig { persistent: false, ..FrontConfig::default() };
    [
        ("uring", "copy", FrontConfig { queues: 2, ..FrontConfig::default() }),
        ("uring", "map", FrontConfig { ring_order: 1, ..plain }),
        ("threads", "copy", plain),
    ]
}

/// An image, the machine that has it as a disk, the back that serves it in this way, and the guest
/// that uses it.
fn served(io: &str, path: &str, config: FrontConfig) -> (Image, World, Back, Guest) {
    let image = Image::new(BYTES);
    let world = World::new(&image.0);
    let back = world.back(io, path, None);
    let guest = Guest::start(&world, config);
    (image, world, back, guest)
}

fn a_disk_goes_on_after_a_crash_at_each_point() {
    for (io, path, config) in ways() {
        for point in POINTS {
            let image = Image::new(BYTES);
            let world = World::new(&image.0);
            let mut back = world.back(io, path, Some(format!("{point}:40")));
            let guest = Guest::start(&world, config);
            let mut deaths = 0;
            work(&image, &guest, 150, || {
                if back.is_dead() {
                    deaths += 1;
                    back = world.back(io, path, None);
                }
            });
            let what = format!("{io}, {path}, persistent {}, {point}", config.persistent);
            assert_eq!(deaths, 1, "{what}");
            assert_eq!(guest.close(), 0, "{what}: requests that the guest had to ask again");
            world.end(back);
        }
    }
}

fn a_disk_goes_on_after_kills_and_stops() {
    for (io, path, config) in ways() {
        let (image, world, mut back, guest) = served(io, path, config);
        let (mut turns, mut ends) = (0, 0);
        work(&image, &guest, 400, || {
            turns += 1;
            if turns % 20 == 0 && ends < 8 {
                ends += 1;
                if ends % 3 == 0 {
                    back.stop()
                } else {
                    back.kill()
                }
                back = world.back(io, path, None);
            }
        });
        assert!(ends > 0, "the work was over before a back died");
        assert_eq!(guest.close(), 0, "{io}, {path}: requests that the guest had to ask again");
        world.end(back);
    }
}

/// Another file is moved to the image's path while no back runs: the guest does not get it, and
/// none of the guest's requests reaches it. When the right file is back, the guest continues with
/// it.
fn a_guest_keeps_the_image_that_it_had() {
    let other = Image::new(BYTES);
    let (image, world, mut back, guest) = served("uring", "copy", FrontConfig::default());
    let disk = guest.disk();
    ask(disk, DiskOp::Write { at: 0, bytes: vec![1; 4096] }).unwrap();
    back.kill();
    let aside = image.0.with_extension("aside");
    std::fs::rename(&image.0, &aside).unwrap();
    std::fs::rename(&other.0, &image.0).unwrap();
    let (report, reported) = std::sync::mpsc::channel();
    let done = Box::new(move |outcome: Result<&[u8], _>| report.send(outcome.map(drop)).unwrap());
    disk.put(DiskOp::Write { at: 4096, bytes: vec![2; 4096] }, done);
    back = world.back("uring", "copy", None);
    // It closes the disk; the front comes again, and again, with what was not answered.
    let unanswered = || assert!(reported.try_recv().is_err(), "it was done in another image");
    while !world.error().contains("is not the image that its guest was connected to") {
        unanswered();
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(1500));
    unanswered();
    back.kill();
    back = world.back("uring", "copy", None);
    std::thread::sleep(Duration::from_millis(500));
    unanswered();
    let mut bytes = vec![0; 8192];
    image.file().read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "the other image was written to");
    std::fs::rename(&aside, &image.0).unwrap();
    reported.recv().unwrap().unwrap();
    let bytes = ask(disk, DiskOp::Read { at: 0, len: 8192 }).unwrap();
    assert_eq!([bytes[0], bytes[4096]], [1, 2]);
    guest.close();
    world.end(back);
}

/// The refusal of a former disk of this number does not hold for a new one, although no back ran
/// when the former one was removed.
fn a_disk_that_is_attached_again_has_the_image_that_it_names() {
    let other = Image::new(BYTES);
    let (image, mut world, mut back, guest) = served("uring", "copy", FrontConfig::default());
    ask(guest.disk(), DiskOp::Write { at: 0, bytes: vec![1; 4096] }).unwrap();
    back.kill();
    std::fs::rename(&other.0, &image.0).unwrap();
    back = world.back("uring", "copy", None);
    while !world.error().contains("is not the image that its guest was connected to") {
        std::thread::sleep(Duration::from_millis(5));
    }
    guest.die();
    back.kill();
    world.reattach(&image.0);
    back = world.back("uring", "copy", None);
    let guest = Guest::start(&world, FrontConfig::default());
    assert_eq!(ask(guest.disk(), DiskOp::Read { at: 0, len: 4096 }), Ok(vec![0; 4096]));
    guest.close();
    world.end(back);
}

/// A back that starts before what its images are on is mounted: its guests wait, and notice
/// nothing.
fn a_guest_waits_for_an_image_that_is_not_there_yet() {
    let (image, world, mut back, guest) = served("uring", "copy", FrontConfig::default());
    let disk = guest.disk();
    ask(disk, DiskOp::Write { at: 0, bytes: vec![1; 4096] }).unwrap();
    back.kill();
    let aside = image.0.with_extension("aside");
    std::fs::rename(&image.0, &aside).unwrap();
    back = world.back("uring", "copy", None);
    // Some tries. A machine that is busy makes it less strict and not wrong.
    std::thread::sleep(Duration::from_millis(1500));
    let said = world.error();
    std::fs::rename(&aside, &image.0).unwrap();
    assert_eq!(said, "", "the disk was closed");
    assert_eq!(ask(disk, DiskOp::Read { at: 0, len: 4096 }), Ok(vec![1; 4096]));
    assert_eq!(guest.close(), 0, "the disk was closed");
    world.end(back);
}

fn a_guest_is_notified_of_another_length() {
    let (image, world, mut back, guest) = served("uring", "copy", FrontConfig::default());
    let disk = guest.disk();
    assert_eq!(disk.len(), BYTES);
    image.file().set_len(2 * BYTES).unwrap();
    let becomes = |len| {
        while disk.len() != len {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    becomes(2 * BYTES);
    ask(disk, DiskOp::Write { at: 2 * BYTES - 512, bytes: vec![7; 512] }).unwrap();
    image.file().set_len(BYTES).unwrap();
    becomes(BYTES);
    // While no back runs.
    back.kill();
    image.file().set_len(3 * BYTES).unwrap();
    back = world.back("uring", "copy", None);
    becomes(3 * BYTES);
    assert_eq!(ask(disk, DiskOp::Read { at: 3 * BYTES - 512, len: 512 }), Ok(vec![0; 512]));
    assert_eq!(guest.close(), 0);
    world.end(back);
}

fn what_a_disk_cannot_do_is_an_error_and_no_more() {
    for io in ["uring", "threads"] {
        let image = Image::new(BYTES);
        let world = World::new(&image.0);
        // The process may not make files longer than half of it: writes there fail.
        let back = world.limited_back(io, BYTES / 2);
        let guest = Guest::start(&world, FrontConfig::default());
        let write = |at| ask(guest.disk(), DiskOp::Write { at, bytes: vec![9; 4096] }).map(drop);
        assert_eq!(write(BYTES / 2), Err(IoError::Failed));
        assert_eq!(write(0), Ok(()));
        assert_eq!(ask(guest.disk(), DiskOp::Read { at: BYTES / 2, len: 4096 }), Ok(vec![0; 4096]));
        assert_eq!(write(BYTES - 4096), Err(IoError::Failed));
        assert_eq!(write(4096), Ok(()), "it serves as before");
        assert_eq!(guest.close(), 0);
        world.end(back);

        let world = World::with(&image.0, false);
        let back = world.back(io, "map", None);
        let guest = Guest::start(&world, FrontConfig { persistent: false, ..FrontConfig::default() });
        assert!(guest.disk().figures().is_some_and(|figures| figures.read_only));
        assert_eq!(ask(guest.disk(), DiskOp::Read { at: 0, len: 4096 }), Ok(vec![9; 4096]));
        assert_eq!(
            ask(guest.disk(), DiskOp::Write { at: 0, bytes: vec![1; 4096] }).map(drop),
            Err(IoError::Failed)
        );
        assert_eq!(guest.close(), 0);
        world.end(back);
    }
}

fn a_discard_reaches_the_file() {
    for io in ["uring", "threads"] {
        let (image, world, back, guest) = served(io, "copy", FrontConfig::default());
        let disk = guest.disk();
        if disk.figures().is_some_and(|figures| figures.discard.is_none()) {
            skip("this file system punches no holes");
        } else {
            ask(disk, DiskOp::Write { at: 0, bytes: vec![5; BYTES as usize] }).unwrap();
            ask(disk, DiskOp::Flush).unwrap();
            let before = image.file().metadata().unwrap().blocks();
            ask(disk, DiskOp::PunchHole { at: 0, len: BYTES / 2 }).unwrap();
            let after = image.file().metadata().unwrap();
            assert!(after.blocks() <= before * 3 / 4 && after.len() == BYTES, "{before}: {}", after.blocks());
            assert_eq!(ask(disk, DiskOp::Read { at: BYTES / 2 - 512, len: 1024 }).unwrap()[511..513], [0, 5]);
        }
        assert_eq!(guest.close(), 0);
        world.end(back);
    }
}

fn a_guest_that_dies_leaves_nothing_mapped() {
    for (io, path, config) in ways() {
        let (_image, world, back, guest) = served(io, path, config);
        // In the middle of writes, whose answers no one waits for.
        for k in 0..64 {
            guest
                .disk()
                .put(DiskOp::Write { at: k * 65536 % BYTES, bytes: vec![1; 65536] }, Box::new(|_| ()));
        }
        guest.die();
        world.end(back);
    }
}
