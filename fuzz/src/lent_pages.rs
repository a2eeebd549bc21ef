//! Pages that a guest grants for one frame each, and has again when their requests are answered,
//! or later where the back holds on to them.

use crate::tape::Tape;
use pregrant::net::front::{GrantedPiece, PIECES_MAX, TxFront};
use pregrant::platform::local::{LocalDomain, LocalMap, LocalRegion};
use pregrant::platform::{Access, GrantPool, GrantTable};
use pregrant::port::{Burst, FrameDesc, Frames, Offload};
use pregrant::shm::SharedBytes;
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::two_domains::{HOST, SLOTS, TwoDomains};
use std::collections::BTreeMap;

pub struct LentPages {
    /// A page for each id.
    memory: LocalRegion,
    /// For each fragment's id its grant.
    pub out: BTreeMap<u16, GrantRef>,
    /// Answered, and the back still had them.
    late: Vec<GrantRef>,
    pub held: Vec<LocalMap>,
}

impl LentPages {
    pub fn new(domains: &TwoDomains) -> Self {
        let memory = GrantTable::pages(&domains.guest, SLOTS as usize).expect("the guest's pages");
        let bytes: Vec<u8> = (0..memory.len()).map(|at| (at ^ at >> 8 ^ at >> 12) as u8).collect();
        assert!(memory.copy_in(0, &bytes));
        Self { memory, out: BTreeMap::new(), late: Vec::new(), held: Vec::new() }
    }

    /// Queues a frame with its payload in granted pages; returns which, if there was room.
    pub fn queue(
        &mut self,
        domains: &TwoDomains,
        tx: &mut TxFront<LocalDomain>,
        tape: &mut Tape<'_>,
    ) -> Option<(Vec<u8>, Offload)> {
        let gso = tape.below(4) == 3;
        let offload = match gso {
            true => Offload { csum_blank: true, csum_ok: true, gso_type: 1, gso_size: 1448 },
            false => Offload::default(),
        };
        let mut frame: Vec<u8> = (0..14 + tape.below(200)).map(|at| (at * 3) as u8).collect();
        let mut pieces = Vec::new();
        let free = |page: &usize| !self.out.contains_key(&(*page as u16));
        for page in (0..SLOTS as usize).filter(free).take(1 + tape.below(PIECES_MAX)) {
            let offset = tape.one_of(&[0u16, 1, 2048, 4095]);
            let len = tape.one_of(&[1, 64, 2048, 4096]).min(PAGE_SIZE as u16 - offset);
            let mut bytes = vec![0; len.into()];
            assert!(self.memory.copy_out(page * PAGE_SIZE + usize::from(offset), &mut bytes));
            frame.extend(bytes);
            let gref = domains.guest.grant(HOST, &self.memory, page, Access::ReadOnly).expect("a grant");
            pieces.push(GrantedPiece { gref, offset, len });
        }
        let desc = FrameDesc { at: 0, len: frame.len() as u32, offload };
        let (frames, mut ids) = ([desc], [0; PIECES_MAX]);
        let burst = Burst::of(&frame, &frames);
        let source = burst.get(0).expect("a frame");
        let queued = tx.queue_pieces(&domains.guest, &source, &pieces, &mut ids);
        if queued != Ok(true) {
            // The ring is full, or all pages are out.
            assert!(queued.is_ok() || pieces.is_empty() || frame.len() > 65535, "{queued:?}");
            pieces.iter().for_each(|piece| assert!(domains.guest.revoke(piece.gref).is_ok()));
            return None;
        }
        for (id, piece) in ids.into_iter().zip(&pieces) {
            assert!(self.out.insert(id, piece.gref).is_none(), "id {id} is a piece twice");
        }
        Some((frame, offload))
    }

    /// Takes back what is answered.
    pub fn answered(&mut self, domains: &TwoDomains, tx: &mut TxFront<LocalDomain>) {
        while let Some(id) = tx.answered_piece() {
            self.late.push(self.out.remove(&id).expect("a piece that is out"));
        }
        self.late.retain(|gref| domains.guest.revoke(*gref).is_err());
    }

    pub fn close(mut self, domains: &TwoDomains) {
        self.held.clear();
        for gref in self.out.into_values().chain(self.late) {
            assert!(domains.guest.revoke(gref).is_ok(), "a grant does not end");
        }
        assert!(domains.guest.release(self.memory).is_ok());
    }
}
