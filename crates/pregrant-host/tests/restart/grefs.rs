//! Backs that die while a guest has pages mapped by request, or unmapped: each request is answered
//! once, and the last back has mapped what the guest asked for (docs/protocol 2.11, R4).

use crate::control::{Backs, Front};
use crate::world::{Word, World};
use pregrant::GrantRef;
use pregrant::net::front::{FrontConfig, Granting};
use pregrant::net::path::gref_mapping::DEFAULT_LIMIT;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::port::Arena;
use pregrant::wire::netif_ctrl::{CtrlType, GREF_READONLY, GrefEntry};
use pregrant_host::drivers::Frontend;
use std::time::Duration;

const POINTS: [&str; 6] =
    ["before-record", "in-record", "after-copy", "in-responses", "before-publish", "before-notify"];
const QUEUES: u32 = 2;
const ADD: CtrlType = CtrlType::AddGrefMapping;
const DEL: CtrlType = CtrlType::DelGrefMapping;

/// A request of the guest, and the answer that is due: type, queue, which of the queue's entries,
/// data.
const STEPS: [(CtrlType, u32, std::ops::Range<usize>, u32); 6] = [
    (CtrlType::GetGrefMappingSize, 1, 0..0, DEFAULT_LIMIT as u32),
    (ADD, 1, 0..80, 80),
    (ADD, 0, 0..512, 512),
    (DEL, 1, 20..60, 40),
    (DEL, 0, 100..400, 300),
    (ADD, 0, 100..400, 300),
];

pub fn mapped_pages_outlive_backs_that_die_at_each_point() {
    for point in POINTS {
        for nth in [1, 2, 3, 5] {
            let world = World::new();
            let what = format!("{point}, number {nth}");
            let back = world.back("spread", Some(format!("{point}:{nth}")));
            let mut backs = Backs { world: &world, back, deaths: 0 };
            let (guest, xs) = world.guest();
            let config = FrontConfig {
                queues: QUEUES,
                ctrl_ring: true,
                granting: Granting::Standing,
                staging: Buffers::NONE,
                ..FrontConfig::default()
            };
            let mut front = Frontend::new(guest, xs, 0, config, false).unwrap();
            while !front.connect(Duration::from_millis(20)).unwrap() {
                backs.check();
            }
            let entries = [0, 1].map(|q| entries(&front, q));
            for (k, (msg_type, queue, range, due)) in STEPS.into_iter().enumerate() {
                let list = &entries[queue as usize][range];
                let answer = ask(&mut front, (msg_type, queue, list), &mut backs);
                assert_eq!(answer, (0, due), "{what}: request {k}");
                if msg_type == DEL {
                    let statuses = front.driver().1.ctrl().unwrap().statuses(list.len()).unwrap();
                    assert!(statuses.iter().all(|status| *status == 0), "{what}: {statuses:?}");
                }
            }
            // The last answer may be there before the back is dead.
            while backs.deaths == 0 {
                backs.check();
            }
            backs.back.is_live();
            frames_come(&mut front, &mut backs);
            // The tables' content shows in the pages that can be taken out: all of them, and no
            // others.
            for (queue, due) in [(0, 512), (1, 40), (0, 0)] {
                let answer = ask(&mut front, (DEL, queue, &entries[queue as usize][..]), &mut backs);
                assert_eq!(answer, (0, due), "{what}: pages of queue {queue}");
            }
            assert_eq!(
                front.driver().1.ctrl().unwrap().answer(),
                Ok(None),
                "{what}: nothing is answered twice"
            );
            assert_eq!((world.log.get(Word::Damaged), backs.deaths), (0, 1), "{what}");
            let back = backs.back;
            assert!(front.close(Duration::from_secs(60)).unwrap());
            drop(front);
            world.end(back);
        }
    }
}

/// The first 256 TX and 256 RX pages of a queue.
fn entries(front: &Front, q: usize) -> Vec<GrefEntry> {
    let [tx, rx] = front.vif().queue(q).unwrap().page_refs();
    let entry = |flags| move |gref: &GrantRef| GrefEntry { gref: gref.0, flags, status: 9 };
    // Of both kinds wherever a list is cut.
    let pairs = tx.iter().map(entry(GREF_READONLY)).zip(rx.iter().map(entry(0)));
    pairs.flat_map(|(tx, rx)| [tx, rx]).collect()
}

fn ask(
    front: &mut Front,
    (msg_type, queue, entries): (CtrlType, u32, &[GrefEntry]),
    backs: &mut Backs,
) -> (u32, u32) {
    let (platform, vif) = front.driver();
    let ctrl = vif.ctrl().unwrap();
    let asked = match msg_type {
        ADD => ctrl.add_grefs(platform, queue, entries),
        DEL => ctrl.del_grefs(platform, queue, entries),
        other => ctrl.ask(platform, other, [queue, 0, 0]),
    };
    asked.unwrap();
    loop {
        if let Some(answer) = ctrl.answer().unwrap() {
            return (answer.status, answer.data);
        }
        backs.check();
    }
}

/// The port gives its frames once: they come, by pages that the last back has mapped.
fn frames_come(front: &mut Front, backs: &mut Backs) {
    let log = &backs.world.log;
    log.set(Word::Limit, log.get(Word::Limit) + 1);
    let (mut arena, mut came) = (Arena::new(), 0);
    while came < crate::control::frames().count() {
        arena.clear();
        came += front.recv(0, &mut arena, 1).unwrap();
        backs.check();
    }
}
