//! A guest that writes what it likes to its ring, without any code of our front's driver.

use crate::world::{HOST, World};
use pregrant::GrantRef;
use pregrant::blk::features::FEATURE_PERSISTENT;
use pregrant::platform::local::{LocalChan, LocalRegion};
use pregrant::platform::{Access, Events, GrantPool};
use pregrant::ring::{AnyOrder, RingMem, RingPages, Word};
use pregrant::wire::blkif::{Abi, Request, Response, RwRequest, Segment};
use pregrant::xenbus::back::BackStep;
use pregrant::xenbus::key_source::flag;

pub struct RawFront<K> {
    pub mem: RingPages<K, LocalRegion>,
    ring: LocalRegion,
    pub ring_ref: GrantRef,
    /// The ring's pages and their grants.
    pub pages: LocalRegion,
    pub refs: Vec<GrantRef>,
    chan: LocalChan,
    pub req_prod: u32,
    rsp_cons: u32,
}

impl<K: AnyOrder<Req = Request, Rsp = Response>> RawFront<K> {
    /// Connects with this many pages that the back may write.
    pub fn connect(world: &mut World, n: usize) -> Self {
        Self::with_keys(world, n, |_| ())
    }

    /// Like `new`, with keys changed before the back reads them.
    pub fn with_keys(world: &mut World, n: usize, change: impl FnOnce(&World)) -> Self {
        let mut ring_ref = [GrantRef::NONE];
        let ring = world.guest.alloc(HOST, Access::ReadWrite, &mut ring_ref).unwrap();
        let mem = RingPages::<K, _>::new(ring.clone());
        mem.init();
        let mut refs = vec![GrantRef::NONE; n];
        let pages = world.guest.alloc(HOST, Access::ReadWrite, &mut refs).unwrap();
        let (chan, port) = world.guest.offer(HOST).unwrap();
        let abi = if K::SLOT_WORDS == Abi::X86_64.slot_words() { Abi::X86_64 } else { Abi::X86_32 };
        world.step_back().unwrap();
        let persists = flag(&mut world.front_bus, FEATURE_PERSISTENT).unwrap();
        for (key, value) in [
            ("ring-ref", ring_ref[0].0.to_string()),
            ("event-channel", port.0.to_string()),
            ("protocol", abi.protocol().to_string()),
            ("feature-persistent", u32::from(persists).to_string()),
            ("state", "3".into()),
        ] {
            world.front_bus.own.borrow_mut().insert(key.into(), value);
        }
        change(world);
        world.step_back().unwrap();
        assert!(world.back_bus.own.borrow()["state"] == "4");
        world.front_bus.own.borrow_mut().insert("state".into(), "4".into());
        Self { mem, ring, ring_ref: ring_ref[0], pages, refs, chan, req_prod: 0, rsp_cons: 0 }
    }

    pub fn ring(&self) -> LocalRegion {
        self.ring.clone()
    }

    /// Writes a request; its back is notified with the next [`publish`](Self::publish).
    pub fn push(&mut self, req: &Request) {
        K::write_req(&self.mem, self.req_prod, req);
        self.req_prod = self.req_prod.wrapping_add(1);
    }

    pub fn publish(&self) {
        self.mem.store(Word::ReqProd, self.req_prod);
    }

    /// The answers that are there, with the words of their slots.
    pub fn answers(&mut self) -> Vec<(Response, [u32; 4])> {
        let n = self.mem.load(Word::RspProd).wrapping_sub(self.rsp_cons);
        assert!(n <= self.req_prod.wrapping_sub(self.rsp_cons), "more answers than requests");
        let at = self.rsp_cons;
        self.rsp_cons = at.wrapping_add(n);
        (0..n)
            .map(|k| at.wrapping_add(k))
            .map(|k| (K::read_rsp(&self.mem, k), self.mem.read::<4>(k)))
            .collect()
    }

    /// Asks one thing, and gives its status.
    pub fn ask(&mut self, world: &mut World, req: &Request) -> i16 {
        self.push(req);
        self.publish();
        for _ in 0..4 {
            world.poll_back();
        }
        let answers = self.answers();
        assert_eq!(answers.len(), 1, "{req:?}");
        assert_eq!(answers[0].0.id, req.id());
        answers[0].0.status
    }

    /// A transfer of these whole pages.
    pub fn pages_of(&self, op: u8, sector: u64, pages: &[usize]) -> Request {
        let mut seg = [Segment::default(); 11];
        for (seg, page) in seg.iter_mut().zip(pages) {
            *seg = Segment { gref: self.refs[*page].0, first_sect: 0, last_sect: 7 };
        }
        let nr_segments = pages.len() as u8;
        Request::ReadWrite(RwRequest {
            op,
            nr_segments,
            handle: 0,
            id: sector ^ 0xabcd_0000_1234,
            sector,
            seg,
        })
    }

    /// The toolstack removes the device: checks that nothing is left.
    pub fn end(self, world: World) {
        self.end_after(world, |world| assert_ne!(world.step_back().unwrap(), BackStep::Waiting));
    }

    /// Like `end`, with a back that `close` closes.
    pub fn end_after(self, mut world: World, close: impl FnOnce(&mut World)) {
        world.front_bus.own.borrow_mut().insert("state".into(), "6".into());
        close(&mut world);
        assert_eq!(world.xen.counts().mapped, 0, "mapped after the end");
        drop(self.chan);
        drop(self.mem);
        assert!(world.guest.release(self.ring).is_ok() && world.guest.release(self.pages).is_ok());
        world.assert_empty();
    }
}
