//! A machine with a guest and the domain of its disk: keys are in maps, the back's journal in pages
//! that outlive it.

use pregrant::DomId;
use pregrant::blk::back::{BackVbd, VbdConfig};
use pregrant::blk::disk::{Discard, DiskFigures, IoError};
use pregrant::blk::features::BackFeatures;
use pregrant::blk::front::{Ask, FrontConfig, FrontStep, FrontVbd, NotAsked};
use pregrant::blk::path::PathName;
use pregrant::platform::local::{LocalDomain, LocalXen, Pages};
use pregrant::shm::SharedBytes;
use pregrant::wire::blkif::Abi;
use pregrant::xenbus::back::BackStep;
use pregrant::xenbus::connect_error::ConnectError;
use pregrant_testkit::bus::{MapBus, device};
use pregrant_testkit::model_disk::ModelDisk;
use std::collections::BTreeMap;

pub const GUEST: DomId = DomId(5);
pub const HOST: DomId = DomId(1);

/// Sectors of a model disk.
pub const SECTORS: u64 = if cfg!(miri) { 256 } else { 4096 };

/// A writable disk that can all there is.
pub fn figures() -> DiskFigures {
    let discard = Some(Discard { granularity: 4096, alignment: 0, secure: false, zeroes: true });
    DiskFigures { discard, ..DiskFigures::of(SECTORS) }
}

/// How the disk of a test is served.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub path: PathName,
    pub back: VbdConfig,
    pub front: FrontConfig,
}

impl Setting {
    pub fn of(path: PathName, abi: Abi) -> Self {
        let persistent = path == PathName::Persistent;
        let fallback = if persistent { PathName::Copy } else { path };
        let features = BackFeatures { persistent, ..BackFeatures::default() };
        let back = VbdConfig { features, fallback, ..VbdConfig::default() };
        let front = FrontConfig { abi, persistent, pages: 96, ..FrontConfig::default() };
        Self { path, back, front }
    }

    /// Every path in both layouts.
    pub fn all() -> impl Iterator<Item = Self> {
        PathName::ALL.into_iter().flat_map(|path| [Abi::X86_64, Abi::X86_32].map(|abi| Self::of(path, abi)))
    }
}

pub struct World {
    pub xen: LocalXen,
    pub guest: LocalDomain,
    pub host: LocalDomain,
    pub front_bus: MapBus,
    pub back_bus: MapBus,
    pub disk: ModelDisk,
    pub config: VbdConfig,
    pub back: BackVbd<LocalDomain>,
    /// Memory that outlives the back.
    kept: BTreeMap<String, Pages>,
    kept_limit: usize,
}

/// The memory that a back gets for a record: what its predecessor left, or new memory.
fn kept_memory(
    kept: &mut BTreeMap<String, Pages>,
    (name, bytes, limit): (&str, usize, usize),
) -> Option<Box<dyn SharedBytes + Send>> {
    let pages = || Pages::new(bytes.min(limit).div_ceil(4096));
    (limit > 0).then(|| Box::new(kept.entry(name.into()).or_insert_with(pages).clone()) as _)
}

impl World {
    /// The toolstack has made the device; the guest may write.
    pub fn new(config: VbdConfig, figures: DiskFigures) -> Self {
        let xen = LocalXen::new();
        let (front_bus, back_bus) = device();
        back_bus.own.borrow_mut().insert("mode".into(), "w".into());
        let disk = ModelDisk::new(figures);
        let back = BackVbd::new(GUEST, 51712, config, Box::new(disk.clone()));
        Self {
            guest: xen.domain(GUEST.0),
            host: xen.domain(HOST.0),
            xen,
            front_bus,
            back_bus,
            disk,
            config,
            back,
            kept: BTreeMap::new(),
            kept_limit: usize::MAX,
        }
    }

    pub fn step_back(&mut self) -> Result<BackStep, ConnectError<String>> {
        let (kept, limit) = (&mut self.kept, self.kept_limit);
        self.back
            .step(&self.host, &mut self.back_bus, &mut |name, bytes| kept_memory(kept, (name, bytes, limit)))
    }

    /// The record kept for a successor by this name is lost: there is new memory, of zeroes.
    pub fn lose_kept(&mut self, name: &str) {
        self.kept.remove(name);
    }

    /// Limits the memory for a record from now on; 0: there is none.
    pub fn limit_kept(&mut self, bytes: usize) {
        self.kept_limit = bytes;
    }

    /// The record kept for a successor by this name.
    pub fn kept(&self, name: &str) -> Pages {
        self.kept[name].clone()
    }

    /// Another process takes over the live rings of one that died without closing anything.
    pub fn succeed(&mut self) -> Result<bool, ConnectError<String>> {
        self.back = BackVbd::new(GUEST, 51712, self.config, Box::new(self.disk.clone()));
        assert_eq!(
            self.back.inherit(&mut self.back_bus).unwrap(),
            pregrant::xenbus::back::PreviousState::Connected
        );
        let (kept, limit) = (&mut self.kept, self.kept_limit);
        self.back.reattach(&self.host, &mut self.back_bus, &mut |name, bytes| {
            kept_memory(kept, (name, bytes, limit))
        })
    }

    /// Polls every queue of the back once.
    pub fn poll_back(&mut self) -> usize {
        let moved = self.back.queues().iter_mut().map(|q| q.poll(&self.host).expect("an honest front")).sum();
        assert_eq!(self.disk.inside().unstarted(), 0, "these are not started before the next request");
        moved
    }

    /// Steps both ends until neither has anything to do.
    pub fn connect(&mut self, front: &mut FrontVbd<LocalDomain>) -> Vec<FrontStep> {
        let mut steps = Vec::new();
        for _ in 0..8 {
            self.step_back().expect("an honest front");
            let step = front.step(&self.guest, &mut self.front_bus).expect("an honest back");
            if step != FrontStep::Waiting {
                steps.push(step);
            }
        }
        steps
    }

    /// A front of ours that is live.
    pub fn front(&mut self, config: FrontConfig) -> FrontVbd<LocalDomain> {
        let mut front = FrontVbd::new(HOST, config, false);
        assert_eq!(self.connect(&mut front), [FrontStep::Live]);
        front
    }

    /// Asks one thing and waits for its answer: its outcome, and what was read.
    pub fn ask(
        &mut self,
        front: &mut FrontVbd<LocalDomain>,
        ask: &Ask<'_>,
    ) -> Result<(Result<(), IoError>, Vec<u8>), NotAsked> {
        front.submit(&self.guest, 0, ask, 77)?;
        front.publish(&self.guest, 0);
        let mut answer = None;
        for _ in 0..100 {
            self.poll_back();
            let each = |a: pregrant::blk::front::Answer<'_, LocalDomain>| {
                let mut bytes = vec![0; a.len()];
                assert_eq!((a.tag, a.copy_out(&mut bytes)), (77, a.len()));
                assert!(answer.is_none(), "two answers");
                answer = Some((a.outcome, bytes));
            };
            front.take(&self.guest, 0, each).expect("an honest back");
        }
        Ok(answer.expect("an answer"))
    }

    /// Both ends close; nothing is granted, mapped or bound.
    pub fn end(mut self, mut front: FrontVbd<LocalDomain>) {
        front.close(&mut self.front_bus, None).unwrap();
        for _ in 0..8 {
            self.step_back().unwrap();
            front.step(&self.guest, &mut self.front_bus).unwrap();
        }
        assert!(front.is_closed(), "the back still uses {} pages", self.xen.counts().mapped);
        drop(front);
        self.assert_empty();
    }

    pub fn assert_empty(&self) {
        let c = self.xen.counts();
        assert_eq!((c.grants, c.mapped, c.channels), (0, 0, 0), "grants, mappings, channel ends left behind");
        assert_eq!(c.maps, c.unmaps);
    }
}

/// Bytes that differ by place and by writer.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|k| (k ^ (k >> 9) ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (k >> 9)) >> 32) as u8)
        .collect()
}
