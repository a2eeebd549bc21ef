//! One guest with many devices, disks and vifs: each has its share of the pages that one guest may
//! have mapped, and no device loses its share to another before it connects.

use pregrant::DomId;
use pregrant::blk::front::{Ask, FrontConfig as DiskConfig, FrontVbd};
use pregrant::net::front::{FrontConfig, FrontVif};
use pregrant::xenbus::bus::StoreBus;
use pregrant::xenbus::toolstack::{self, Vbd};
use pregrant::xenbus::{Class, Device, DeviceId, XenbusState};
use pregrant_host::drivers::{DeviceReport, Net};
use pregrant_loopback::Loopback;
use pregrant_test_machine::guest::{Guest, exchange, ordinary, staging};
use pregrant_test_machine::machine::{BACK, Back, Machine, Plan, Store, Test, until};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

const GUEST: u16 = 5;

pub const TESTS: &[Test] = &[
    ("sixteen_disks_and_sixteen_vifs_of_one_guest", sixteen_disks_and_sixteen_vifs_of_one_guest),
    ("sixteen_vifs_of_one_guest_have_long_lists", sixteen_vifs_of_one_guest_have_long_lists),
    (
        "sixteen_vifs_of_one_guest_keep_more_pages_than_slots",
        sixteen_vifs_of_one_guest_keep_more_pages_than_slots,
    ),
    ("a_guest_that_names_more_than_it_may_is_refused", a_guest_that_names_more_than_it_may_is_refused),
    ("disks_that_are_offered_take_nothing", disks_that_are_offered_take_nothing),
    ("what_one_guest_lets_go_of_comes_to_another", what_one_guest_lets_go_of_comes_to_another),
    ("a_disk_s_long_requests_raise_its_share", a_disk_s_long_requests_raise_its_share),
    ("a_vif_s_store_fills_again_after_a_take_over", a_vif_s_store_fills_again_after_a_take_over),
];

/// Image files that go with their test.
struct Images(Vec<PathBuf>);

impl Images {
    fn new(n: u32) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let image = |k| {
            let path = dir.join(format!("share-{}-{k}", std::process::id()));
            File::create(&path).unwrap().set_len(1 << 20).unwrap();
            path
        };
        Self((0..n).map(image).collect())
    }

    /// The toolstack makes a disk of each.
    fn attach(&self, machine: &mut Machine) -> Vec<DeviceId> {
        self.attach_to(machine, GUEST, 0..self.0.len())
    }

    /// Attaches some of the images to this guest.
    fn attach_to(&self, machine: &mut Machine, guest: u16, which: Range<usize>) -> Vec<DeviceId> {
        let mut ids = Vec::new();
        for (k, path) in self.0[which].iter().enumerate() {
            let vbd = Vbd::new(DomId(guest), BACK, (51712 + 16 * k as u32, "xvd"), path.to_str().unwrap());
            vbd.create(&mut machine.xs).unwrap();
            ids.push(vbd.id);
        }
        ids
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// A guest's kernel with many devices, in the test's thread.
struct Kernel {
    platform: Loopback,
    xs: Store,
    disks: Vec<(Device, FrontVbd<Loopback>)>,
    vifs: Vec<(Device, FrontVif<Loopback>)>,
}

impl Kernel {
    fn new(machine: &Machine) -> Self {
        Self::of(machine, GUEST)
    }

    fn of(machine: &Machine, guest: u16) -> Self {
        let (platform, xs) = machine.attach(DomId(guest));
        Self { platform, xs, disks: Vec::new(), vifs: Vec::new() }
    }

    fn disk(&mut self, id: &DeviceId, config: DiskConfig) {
        let device = Device::front(&mut self.xs, Class::VBD, id.handle).unwrap();
        self.disks.push((device, FrontVbd::new(BACK, config, false)));
    }

    fn vif(&mut self, id: &DeviceId, config: FrontConfig) {
        let device = Device::front(&mut self.xs, Class::VIF, id.handle).unwrap();
        self.vifs.push((device, FrontVif::new(BACK, config, false)));
    }

    fn step(&mut self) {
        let Self { platform, xs, disks, vifs } = self;
        for (device, vbd) in disks {
            vbd.step(platform, &mut StoreBus { device, xs }).unwrap();
        }
        for (device, vif) in vifs {
            vif.step(platform, &mut StoreBus { device, xs }).unwrap();
        }
    }

    /// All of its devices are live.
    fn connect(&mut self) {
        until(|| {
            self.step();
            self.disks.iter().all(|(_, vbd)| vbd.is_live()) && self.vifs.iter().all(|(_, vif)| vif.is_live())
        });
    }

    /// Asks a disk for many requests at a time, until all are answered.
    fn read(&mut self, disk: usize, requests: u64, sectors: u32) {
        let (_, vbd) = &mut self.disks[disk];
        let (mut asked, mut answered) = (0, 0);
        while answered < requests {
            while asked < requests
                && vbd
                    .submit(&self.platform, 0, &Ask::Read { sector: 8 * (asked % 64), sectors }, asked)
                    .is_ok()
            {
                asked += 1;
            }
            vbd.publish(&self.platform, 0);
            let each = |a: pregrant::blk::front::Answer<'_, Loopback>| {
                assert_eq!(a.outcome, Ok(()));
                answered += 1;
            };
            if vbd.take(&self.platform, 0, each).unwrap() == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn close(mut self) {
        let Self { xs, disks, vifs, .. } = &mut self;
        disks.iter_mut().for_each(|(device, vbd)| vbd.close(&mut StoreBus { device, xs }, None).unwrap());
        vifs.iter_mut().for_each(|(device, vif)| vif.close(&mut StoreBus { device, xs }, None).unwrap());
        until(|| {
            self.step();
            self.disks.iter().all(|(_, vbd)| vbd.is_closed())
                && self.vifs.iter().all(|(_, vif)| vif.is_closed())
        });
    }
}

fn serving(machine: &Machine) -> Back {
    let back = Back::serving(machine, Plan { disks: true, recovers: true, ..Plan::default() });
    back.ask(|_| ()); // attached
    back
}

/// One process ends in good order, and another one takes over everything.
fn take_over(machine: &Machine, back: Back, ids: &[DeviceId]) -> Back {
    back.ask(|backend| backend.detach());
    drop(back);
    let back = serving(machine);
    until(|| ids.iter().all(|id| report(&back, *id).is_some_and(|(report, _)| report.reattached)));
    back
}

/// The backend's report of a device, and the number of pages that it keeps.
fn report(back: &Back, id: DeviceId) -> Option<(DeviceReport, u64)> {
    back.ask(move |backend| {
        let found = backend.devices().find(|(report, _)| report.id == id);
        found.map(|(report, served)| {
            let gauges = served.figures().gauges;
            (report, gauges.iter().find(|(name, _)| *name == "kept_pages").map_or(0, |(_, pages)| *pages))
        })
    })
}

fn end(mut machine: Machine, back: Back, ids: &[DeviceId]) {
    ids.iter().for_each(|id| toolstack::remove(&mut machine.xs, id).unwrap());
    until(|| ids.iter().all(|id| report(&back, *id).is_none()));
    back.stop();
    machine.end();
}

/// The front has 256 grants for all of its disks, and vifs of all kinds; with a limit far above and
/// far below what they request.
fn sixteen_disks_and_sixteen_vifs_of_one_guest() {
    // 16 disks have a ring page, 16 vifs of two queues four. Lists: 32 pages a queue. Kept: 512
    // pages a queue, and 1408 of a disk.
    const LEAST: usize = 16 + 16 * 4;
    for (limit, pages) in [(16 * 1024, 512), (16 * 1024, 15), (1024, 15), (LEAST + 64, 15)] {
        let mut machine = Machine::start();
        let back = serving(&machine);
        back.ask(move |backend| backend.config_mut().page_limit = limit);
        machine.guest_domain(GUEST);
        let images = Images::new(16);
        let disks = images.attach(&mut machine);
        let vifs: Vec<_> = (0..16).map(|handle| machine.make_vif(GUEST, handle)).collect();
        let mut guest = Kernel::new(&machine);
        let queues = |config| FrontConfig { queues: 2, ..config };
        disks.iter().for_each(|id| guest.disk(id, DiskConfig { pages, ..DiskConfig::default() }));
        for (k, id) in vifs.iter().enumerate() {
            let persistent = FrontConfig { persistent: true, ..ordinary() };
            guest.vif(id, queues(if k % 2 == 0 { persistent } else { staging(Some(256), Some(256)) }));
        }
        guest.connect();
        let reports = || {
            let all = disks.iter().chain(&vifs).map(|id| report(&back, *id).unwrap().0);
            all.collect::<Vec<_>>()
        };
        until(|| reports().iter().all(|r| r.state == XenbusState::Connected));
        let reports = reports();
        let all: usize = reports.iter().map(|r| r.pages_needed + r.pages_allowed).sum();
        assert!(all <= limit, "{all} of {limit}");
        for (k, report) in reports.iter().enumerate() {
            let what = format!(
                "{limit}: device {k} needs {}, may keep {}",
                report.pages_needed, report.pages_allowed
            );
            let is_staging = k >= 16 && k % 2 == 1;
            assert!(report.pages_allowed > 0 || is_staging, "{what}");
            // Every list where there is room, and at least one where there is room for one of each
            // vif.
            let lists = report.pages_needed - if is_staging { 4 } else { report.pages_needed };
            let least = if limit > 1024 {
                64
            } else if limit == 1024 {
                16
            } else {
                0
            };
            assert!(!is_staging || lists >= least, "{what}");
        }
        for disk in 0..16 {
            guest.read(disk, 40, 64);
        }
        let kept = disks.iter().map(|id| report(&back, *id).unwrap().1);
        assert!(kept.into_iter().all(|kept| kept > 0));
        guest.close();
        end(machine, back, &disks.into_iter().chain(vifs).collect::<Vec<_>>());
    }
}

/// Each vif has as many staging buffers as a back offers, and there is still room for the rings of
/// more vifs.
fn sixteen_vifs_of_one_guest_have_long_lists() {
    let mut machine = Machine::start();
    let back = serving(&machine);
    machine.guest_domain(GUEST);
    let mut ids: Vec<_> = (0..16).map(|handle| machine.make_vif(GUEST, handle)).collect();
    let mut guest = Kernel::new(&machine);
    let mut config = staging(Some(2048), Some(2048));
    config.staging.buffers = 1024;
    ids.iter().for_each(|id| guest.vif(id, config));
    guest.connect();
    let lists = |guest: &Kernel| -> Vec<_> {
        guest.vifs.iter().map(|(_, vif)| vif.queue(0).unwrap().staging_buffers()).collect()
    };
    assert_eq!(lists(&guest), [(896, 896); 16]);
    let needed = |id: &DeviceId| report(&back, *id).unwrap().0.pages_needed;
    assert_eq!(ids.iter().map(needed).sum::<usize>(), 16 * (2 + 896));
    // Those that come later have fewer buffers or none, and are served.
    for handle in 16..18 {
        let id = machine.make_vif(GUEST, handle);
        guest.vif(&id, config);
        ids.push(id);
    }
    guest.connect();
    let all = ids.iter().map(needed).sum::<usize>();
    assert!(all <= 16 * 1024, "{all}: {:?}", lists(&guest));
    guest.close();
    end(machine, back, &ids);
}

/// Each vif keeps as many pages mapped as a back offers, by persistent grants and by gref mappings.
fn sixteen_vifs_of_one_guest_keep_more_pages_than_slots() {
    let mut machine = Machine::start();
    let back = serving(&machine);
    back.ask(|backend| {
        let config = &mut backend.class_mut::<Net<Loopback>>().unwrap().config.vif;
        config.features.mapped_pages = config.paths.mapped_pages();
    });
    machine.guest_domain(GUEST);
    let ids: Vec<_> = (0..16).map(|handle| machine.make_vif(GUEST, handle)).collect();
    let mut guest = Kernel::new(&machine);
    for (k, id) in ids.iter().enumerate() {
        let (persistent, gref_mapping) = (k % 2 == 0, k % 2 == 1);
        guest.vif(id, FrontConfig { persistent, gref_mapping, pages: 1024, ..ordinary() });
    }
    guest.connect();
    let Kernel { platform, vifs, .. } = &mut guest;
    until(|| {
        for (_, vif) in vifs.iter_mut() {
            vif.turn(platform).unwrap();
        }
        vifs.iter().all(|(_, vif)| !vif.is_announcing())
    });
    for (k, (_, vif)) in vifs.iter().enumerate() {
        assert_eq!(vif.queue(0).unwrap().pages(), [448; 2], "vif {k}");
        assert_eq!(vif.gref_pages(0), if k % 2 == 1 { 896 } else { 0 }, "vif {k}");
    }
    for id in ids.iter().step_by(2) {
        let allowed = report(&back, *id).unwrap().0.pages_allowed;
        assert!(allowed >= 896, "{id}: {allowed}");
    }
    guest.close();
    end(machine, back, &ids);
}

/// More rings than the limit has pages: the last ones are refused, and the others are served.
fn a_guest_that_names_more_than_it_may_is_refused() {
    let mut machine = Machine::start();
    let back = serving(&machine);
    back.ask(|backend| backend.config_mut().page_limit = 3);
    machine.guest_domain(GUEST);
    let images = Images::new(4);
    let ids = images.attach(&mut machine);
    let mut guest = Kernel::new(&machine);
    ids[..3].iter().for_each(|id| guest.disk(id, DiskConfig::default()));
    guest.connect();
    guest.disk(&ids[3], DiskConfig::default());
    until(|| {
        guest.step();
        machine.error_node(ids[3]).is_some()
    });
    let why = machine.error_node(ids[3]).unwrap();
    assert!(why.contains("it needs 1 mapped page(s), and 0 of the guest's limit are free"), "{why}");
    (0..3).for_each(|disk| guest.read(disk, 40, 64));
    guest.close();
    end(machine, back, &ids);
}

/// Six disks, three of them open: these keep all of their pages, before and after a take-over,
/// whatever the others are asked.
fn disks_that_are_offered_take_nothing() {
    let mut machine = Machine::start();
    let mut back = serving(&machine);
    machine.guest_domain(GUEST);
    let images = Images::new(6);
    let ids = images.attach(&mut machine);
    let (opened, offered) = ids.split_at(3);
    let mut guest = Kernel::new(&machine);
    opened.iter().for_each(|id| guest.disk(id, DiskConfig::default()));
    guest.connect();
    let keeps = |back: &Back| {
        let kept = opened.iter().map(|id| report(back, *id).unwrap());
        kept.map(|(report, kept)| (report.pages_allowed, kept)).collect::<Vec<_>>()
    };
    for round in 0..3 {
        (0..3).for_each(|disk| guest.read(disk, 200, 64));
        let before = keeps(&back);
        assert!(before.iter().all(|(allowed, kept)| *allowed == 1056 && *kept >= 64), "{round}: {before:?}");
        // They are checked.
        for id in offered {
            let state = format!("{}/state", id.front_dir());
            machine.xs.write(&state, XenbusState::Initialising.digit()).unwrap();
        }
        back.ask(|backend| while backend.control().unwrap() {});
        (0..3).for_each(|disk| guest.read(disk, 200, 64));
        assert_eq!(keeps(&back), before, "{round}");
        back = take_over(&machine, back, opened);
    }
    guest.close();
    end(machine, back, &ids);
}

/// Two guests have all pages that may stay mapped for all guests; a third one, which came last,
/// gets its share once one of them is gone.
fn what_one_guest_lets_go_of_comes_to_another() {
    let mut machine = Machine::start();
    let back = serving(&machine);
    let images = Images::new(9);
    let mut ids = Vec::new();
    let mut guests = Vec::new();
    for (guest, which) in [(GUEST, 0..4), (GUEST + 1, 4..8), (GUEST + 2, 8..9)] {
        machine.guest_domain(guest);
        let disks = images.attach_to(&mut machine, guest, which);
        let mut kernel = Kernel::of(&machine, guest);
        let config = DiskConfig { queues: 4, pages: 15, ..DiskConfig::default() };
        disks.iter().for_each(|id| kernel.disk(id, config));
        kernel.connect();
        ids.extend(disks);
        guests.push(kernel);
    }
    let kept_by_last = || report(&back, ids[8]).unwrap().0.pages_allowed;
    until(|| ids.iter().all(|id| report(&back, *id).unwrap().0.state == XenbusState::Connected));
    assert!(kept_by_last() < 100, "{} of 32768 are left to it", kept_by_last());
    guests.remove(0).close();
    until(|| kept_by_last() == 4 * 1056);
    guests.into_iter().for_each(Kernel::close);
    end(machine, back, &ids);
}

/// The bound of pages mapped for single requests of a disk follows the requests' length.
fn a_disk_s_long_requests_raise_its_share() {
    let mut machine = Machine::start();
    let back = serving(&machine);
    machine.guest_domain(GUEST);
    let images = Images::new(1);
    let ids = images.attach(&mut machine);
    let mut guest = Kernel::new(&machine);
    guest.disk(&ids[0], DiskConfig::default());
    guest.connect();
    let needed = || report(&back, ids[0]).unwrap().0.pages_needed;
    guest.read(0, 40, 11 * 8);
    assert_eq!(needed(), 1 + 32 * 11);
    guest.read(0, 40, 32 * 8);
    until(|| needed() == 1 + 32 * 32);
    guest.close();
    end(machine, back, &ids);
}

/// A successor finds the pages as fast as its predecessor did.
fn a_vif_s_store_fills_again_after_a_take_over() {
    let mut machine = Machine::start();
    let mut back = serving(&machine);
    machine.guest_domain(GUEST);
    let ids = [0, 1].map(|handle| machine.make_vif(GUEST, handle));
    let persistent = FrontConfig { persistent: true, ..ordinary() };
    let [mut a, mut b] = ids.map(|id| Guest::connected(&machine, id, persistent));
    let persistent_frames = |back: &Back| {
        let frames = |id| {
            let report = back.report(id).unwrap();
            let (_, tx, _, rx) = report.queues[0];
            (tx.persistent + rx.persistent, report.mapped_pages)
        };
        ids.map(frames)
    };
    let mut first = None;
    for round in 0..3 {
        exchange(&mut a, &mut b, &[1000; 100]);
        let now = persistent_frames(&back);
        let first = *first.get_or_insert(now);
        for (now, first) in now.iter().zip(first) {
            assert!(now.0 + 16 >= first.0 && now.1 + 16 >= first.1, "{round}: {now:?}, at first {first:?}");
        }
        assert!(first[0].0 > 200, "{first:?}");
        back = take_over(&machine, back, &ids);
    }
    a.close();
    b.close();
    end(machine, back, &ids);
}
