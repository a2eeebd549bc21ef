//! Backs that die while a guest sets hash, table and multicast addresses: each request is answered
//! once, and the last back applies what the guest asked for (docs/protocol 1.1, R4).

use crate::back::Wakers;
use crate::world::{Back, Log, Word, World};
use pregrant::net::back::hash::HashSettings;
use pregrant::net::front::ctrl::NotAsked;
use pregrant::net::front::{CtrlFront, FrontConfig};
use pregrant::net::headers::MacAddr;
use pregrant::port::{Arena, Burst, FramePort, Offload, Offloads, PortOwner, Steering};
use pregrant::wire::netif_ctrl::{CtrlResponse, CtrlType};
use pregrant_host::UnixTransport;
use pregrant_host::drivers::Frontend;
use pregrant_loopback::Loopback;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The crash points of backs: in the record of a control state, and in an answer.
const POINTS: [&str; 6] =
    ["before-record", "in-record", "after-copy", "in-responses", "before-publish", "before-notify"];
const QUEUES: usize = 2;
const KEY: [u8; 40] = *b"forty bytes that do not repeat at once..";
const TABLE: [u32; 5] = [1, 0, 0, 1, 1];
const GROUPS: u8 = 4;
const FLOWS: u8 = 16;

/// TCP segments of some flows, and one to each of some groups. The number is in the last byte.
pub fn frames() -> impl Iterator<Item = (u8, Vec<u8>)> {
    (0..FLOWS + GROUPS).map(|n| {
        let group = n.checked_sub(FLOWS);
        let mut f = group.map_or(vec![2, 0, 0, 0, 0, 5], |g| vec![1, 0, 0x5E, 0, 0, g]);
        f.extend([
            2,
            0,
            0,
            0,
            0,
            1,
            8,
            0,
            0x45,
            0,
            0,
            47,
            0,
            1,
            0,
            0,
            64,
            6,
            0,
            0,
            10,
            0,
            n.wrapping_mul(41),
            n,
            10,
            0,
            0,
            2,
        ]);
        f.extend([n.wrapping_mul(73), 1, 0, 80]);
        f.resize(60, 0);
        f.push(n);
        (n, f)
    })
}

/// Returns the frames of its queue once after each raise of the log's limit. Before the guest sets
/// how to distribute them, queue 0 gets all.
pub struct SpreadPort {
    log: Arc<Mutex<Log>>,
    queue: usize,
    given: u32,
    steering: Option<Arc<dyn Steering>>,
    wakers: Wakers,
}

impl SpreadPort {
    pub fn new(log: Arc<Mutex<Log>>, queue: usize, wakers: Wakers) -> Self {
        let given = log.lock().unwrap().get(Word::Limit);
        Self { log, queue, given, steering: None, wakers }
    }
}

impl FramePort for SpreadPort {
    fn caps(&self) -> Offloads {
        Offloads { csum: true, gso: true }
    }
    fn tx_burst(&mut self, frames: &Burst<'_>) -> usize {
        self.log.lock().unwrap().add(Word::Damaged, 1); // the guest sends requests, and no frame
        frames.frames.len()
    }
    fn rx_burst(&mut self, into: &mut Arena) -> usize {
        let limit = self.log.lock().unwrap().get(Word::Limit);
        if limit == self.given {
            return 0;
        }
        self.given = limit;
        for (_, frame) in frames() {
            if self.steering.as_ref().map_or(0, |s| s.queue_of(&frame)) == self.queue {
                assert!(into.push(&frame, Offload::default()));
            }
        }
        into.len()
    }
    fn owned_by(&mut self, owner: &PortOwner) {
        self.wakers.keep((0, self.queue), owner);
    }
    fn steer(&mut self, by: Option<Arc<dyn Steering>>) {
        self.steering = by;
    }
}

/// A back, and after it another.
pub struct Backs<'a> {
    pub world: &'a World,
    pub back: Back,
    pub deaths: u32,
}

impl Backs<'_> {
    /// Watches the back, and lets it run for a moment.
    pub fn check(&mut self) {
        if self.back.is_dead() {
            self.deaths += 1;
            self.back = self.world.back("spread", None);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub type Front = Frontend<Loopback, UnixTransport>;
/// A request, and the answer that is due: status and data.
type Step = (fn(&mut CtrlFront<Loopback>, &Loopback) -> Result<(), NotAsked>, (u32, u32));

const STEPS: [Step; 6] = [
    (|c, p| c.ask(p, CtrlType::SetHashAlgorithm, [1, 0, 0]), (0, 0)),
    (|c, p| c.set_key(p, &KEY), (0, 0)),
    (|c, p| c.ask(p, CtrlType::SetHashFlags, [0xF, 0, 0]), (0, 0)),
    (|c, p| c.ask(p, CtrlType::SetHashMappingSize, [TABLE.len() as u32, 0, 0]), (0, 0)),
    (|c, p| c.ask(p, CtrlType::GetHashFlags, [0; 3]), (0, 0xF)),
    (|c, p| c.set_mapping(p, 0, &TABLE), (0, 0)),
];

/// The guest's requests for groups, in their order.
const REQUESTS: [(u8, bool); 3] = [(1, true), (3, true), (1, false)];

pub fn what_a_guest_set_outlives_backs_that_die_at_each_point() {
    for point in POINTS {
        for nth in [1, 2, 4, 5, 7, 9] {
            let world = World::new();
            let what = format!("{point}, number {nth}");
            let back = world.back("spread", Some(format!("{point}:{nth}")));
            let mut backs = Backs { world: &world, back, deaths: 0 };
            let (guest, xs) = world.guest();
            let config = FrontConfig {
                queues: QUEUES as u32,
                ctrl_ring: true,
                multicast_control: true,
                ..FrontConfig::default()
            };
            let mut front = Frontend::new(guest, xs, 0, config, false).unwrap();
            while !front.connect(Duration::from_millis(20)).unwrap() {
                backs.check();
            }
            for (k, (ask, due)) in STEPS.into_iter().enumerate() {
                // Between the requests, so that records and answers of both kinds take turns.
                if let Some(&(n, wanted)) = REQUESTS.get(k / 2).filter(|_| k % 2 == 1) {
                    request_group(&mut front, n, wanted, &mut backs);
                }
                let answer = answer(&mut front, ask, &mut backs);
                assert_eq!((answer.status, answer.data), due, "{what}: request {k}");
            }
            // The last answer may be there before the back is dead.
            while backs.deaths == 0 {
                backs.check();
            }
            backs.back.is_live();
            let came = frames_of_each_queue(&mut front, &mut backs);
            assert_eq!(came, due(), "{what}");
            let (_, vif) = front.driver();
            assert_eq!(vif.ctrl().unwrap().answer(), Ok(None), "{what}: nothing is answered twice");
            assert_eq!(world.log.get(Word::Damaged), 0, "{what}");
            assert_eq!(backs.deaths, 1, "{what}");
            let back = backs.back;
            assert!(front.close(Duration::from_secs(60)).unwrap());
            drop(front);
            world.end(back);
        }
    }
}

fn answer(
    front: &mut Front,
    ask: fn(&mut CtrlFront<Loopback>, &Loopback) -> Result<(), NotAsked>,
    backs: &mut Backs,
) -> CtrlResponse {
    let (platform, vif) = front.driver();
    let ctrl = vif.ctrl().unwrap();
    ask(ctrl, platform).unwrap();
    loop {
        if let Some(answer) = ctrl.answer().unwrap() {
            return answer;
        }
        backs.check();
    }
}

fn request_group(front: &mut Front, n: u8, wanted: bool, backs: &mut Backs) {
    let (platform, vif) = front.driver();
    assert!(vif.multicast(platform, MacAddr([1, 0, 0x5E, 0, 0, n]), wanted));
    while vif.multicast_requests() != (0, 0) {
        assert_eq!(vif.multicast_requests(), (1, 0), "refused");
        vif.queue_mut(0).unwrap().reclaim(platform, 1).unwrap();
        backs.check();
    }
}

/// Frames that arrive on each queue, once the port is asked to give.
fn frames_of_each_queue(front: &mut Front, backs: &mut Backs) -> [Vec<u8>; QUEUES] {
    let log = &backs.world.log;
    log.set(Word::Limit, log.get(Word::Limit) + 1);
    let mut came = [const { Vec::new() }; QUEUES];
    let mut arena = Arena::new();
    let due: usize = due().iter().map(Vec::len).sum();
    // One more would come at once, if it came.
    let mut quiet = 0;
    while came.iter().map(Vec::len).sum::<usize>() < due || quiet < 20 {
        for (i, came) in came.iter_mut().enumerate() {
            arena.clear();
            front.recv(i, &mut arena, 1).unwrap();
            came.extend(arena.burst().iter().map(|(frame, _)| frame[frame.len() - 1]));
        }
        quiet += 1;
        assert!(quiet < 200_000, "only {came:?} came");
        backs.check();
    }
    came
}

/// The frames that are expected on each queue: by the guest's own calculation, and of the groups
/// only the one that was named last.
fn due() -> [Vec<u8>; QUEUES] {
    let mut hash = HashSettings::default();
    let _ = (hash.set_algorithm(1), hash.set_flags(0xF), hash.set_key(&KEY));
    let _ = (hash.set_mapping_size(TABLE.len() as u32), hash.set_mapping(&TABLE, 0, QUEUES));
    let mut due = [const { Vec::new() }; QUEUES];
    for (n, frame) in frames().filter(|(n, _)| *n < FLOWS || *n == FLOWS + 3) {
        due[hash.queue(hash.hash(&frame).unwrap().value, QUEUES)].push(n);
    }
    assert!(due.iter().all(|d| d.len() > 2), "the flows are spread: {due:?}");
    due
}
