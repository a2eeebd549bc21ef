//! Any bits at all: decoding never panics, and writing back gives the same bits with every pad
//! zero.

use pregrant::wire::blkif::{Abi, Request, Response, SLOT_WORDS_MAX, Segment};
use pregrant::wire::grant::{GrantEntryV1, GrantEntryV2, GrantStatus};
use pregrant::wire::netif::{Extra, RxRequest, RxResponse, TxRequest, TxResponse};
use pregrant::wire::netif_ctrl::{CtrlRequest, CtrlResponse, CtrlStatus, CtrlType, GrefEntry};
use pregrant::wire::staging::StagingEntry;
use pregrant::wire::xs::{Errno, Header, MsgType};
use pregrant::wire::{data_ring, ring};
use proptest::prelude::*;

/// Miri runs a few cases only, and may not open files of earlier failures.
fn config() -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() }
    } else {
        ProptestConfig::with_cases(2000)
    }
}

/// `words` with the bits of the pads cleared.
fn masked<const N: usize>(words: [u32; N], mask: [u32; N]) -> [u32; N] {
    std::array::from_fn(|i| words[i] & mask[i])
}

const ALL: u32 = u32::MAX;
/// The segments of a block request: gref, then two bytes, then a pad of two.
const SEGMENTS: [u32; 22] = {
    let mut m = [ALL; 22];
    let mut i = 1;
    while i < 22 {
        m[i] = 0xFFFF;
        i += 2;
    }
    m
};

/// What a block request uses of its slot behind word 0, by op, as if there were no pad before the
/// id.
fn blk_body_mask(op: u8) -> Vec<u32> {
    let id_and_sector = [ALL; 4];
    match op {
        0..=3 => [&id_and_sector[..], &SEGMENTS].concat(),
        5 => [&id_and_sector[..], &[ALL; 2]].concat(),
        6 => [&id_and_sector[..], &[0xFFFF], &[ALL; 8]].concat(),
        _ => vec![ALL; 2],
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn netif(w: [u32; 3]) {
        prop_assert_eq!(TxRequest::from_words(w).to_words(), w);
        prop_assert_eq!(TxResponse::from_word(w[0]).to_word(), w[0]);
        let w = [w[0], w[1]];
        prop_assert_eq!(RxRequest::from_words(w).to_words(), masked(w, [0xFFFF, ALL]));
        prop_assert_eq!(RxResponse::from_words(w).to_words(), w);
    }

    #[test]
    fn netif_extra(extra_type in 0u8..8, w: [u32; 3]) {
        let w = [w[0] & !0xFF | u32::from(extra_type), w[1], w[2]];
        let parsed = Extra::parse([w[0], w[1]]);
        prop_assert_eq!(parsed, Extra::parse_tx(w));
        let gso_is_good = w[0] >> 16 != 0 && matches!(w[1] & 0xFF, 1 | 2);
        let known = match extra_type { 1 => gso_is_good, 2..=5 => true, _ => false };
        prop_assert_eq!(parsed.is_ok(), known);
        if let Ok((extra, more)) = parsed {
            let body = match extra_type { 1 => 0xFF, 5 => 0, _ => ALL };
            // Of the flags byte only MORE is known.
            prop_assert_eq!(extra.to_words(more), masked([w[0], w[1]], [0xFFFF_01FF, body]));
            prop_assert_eq!(extra.to_tx_words(more), masked(w, [0xFFFF_01FF, body, 0]));
        }
    }

    /// Values that a driver writes come back, whatever it chose.
    #[test]
    fn netif_gso(size in 1u16.., gso_type in 1u8..=2, more: bool) {
        let extra = Extra::Gso { size, gso_type };
        prop_assert_eq!(Extra::parse(extra.to_words(more)), Ok((extra, more)));
    }

    #[test]
    fn netif_ctrl(w: [u32; 4], b: [u8; 8]) {
        prop_assert_eq!(CtrlRequest::from_words(w).to_words(), w);
        let r = [w[0], w[1], w[2]];
        prop_assert_eq!(CtrlResponse::from_words(r).to_words(), r);
        prop_assert_eq!(GrefEntry::from_bytes(b).to_bytes(), b);
        if let Some(t) = CtrlType::from_raw(w[0] as u16) {
            prop_assert_eq!(t.raw(), w[0] as u16);
        }
        if let Some(s) = CtrlStatus::from_raw(w[1]) {
            prop_assert_eq!(s.raw(), w[1]);
        }
    }

    #[test]
    fn staging(b: [u8; 8]) {
        let e = StagingEntry::from_bytes(b);
        prop_assert_eq!(e.to_bytes(), b);
        prop_assert_eq!(e.is_terminator(), b[2..6] == [0; 4]);
    }

    #[test]
    fn grant(w: [u32; 4], status: i16) {
        let v1 = [w[0], w[1]];
        prop_assert_eq!(GrantEntryV1::from_words(v1).to_words(), v1);
        let v2 = GrantEntryV2::from_words(w);
        let mask = match v2 {
            GrantEntryV2::Full { .. } => [ALL, 0, ALL, ALL],
            GrantEntryV2::SubPage { .. } => [ALL; 4],
            GrantEntryV2::Transitive { .. } => [ALL, 0xFFFF, ALL, 0],
        };
        prop_assert_eq!(v2.to_words(), masked(w, mask));
        prop_assert!(GrantStatus(status).to_string().contains(&status.to_string()));
    }

    #[test]
    fn blkif(op in 0u8..9, w: [u32; SLOT_WORDS_MAX], max: u16) {
        let mut w = w;
        w[0] = w[0] & !0xFF | u32::from(op);
        for (abi, id_at) in [(Abi::X86_64, 2), (Abi::X86_32, 1)] {
            let request = Request::from_words(abi, &w);
            let mut expected = [0; SLOT_WORDS_MAX];
            expected[0] = if let Request::Other { .. } = request { w[0] & 0xFF } else { w[0] };
            for (i, mask) in blk_body_mask(op).into_iter().enumerate() {
                expected[id_at + i] = w[id_at + i] & mask;
            }
            prop_assert_eq!(request.to_words(abi), expected);
            prop_assert_eq!(request.id(), u64::from(w[id_at]) | u64::from(w[id_at + 1]) << 32);
            match request {
                Request::ReadWrite(r) => {
                    prop_assert_eq!(r.segments().is_ok(), r.nr_segments <= 11);
                    for s in r.seg {
                        let good = s.first_sect <= s.last_sect && s.last_sect < 8;
                        prop_assert_eq!(s.nr_sectors().is_ok(), good);
                        prop_assert_eq!(Segment::from_bytes(s.to_bytes()), s);
                    }
                }
                Request::Indirect(r) => {
                    let good = (1..=max.min(4096)).contains(&r.nr_segments);
                    prop_assert_eq!(r.pages(max).is_ok(), good);
                }
                _ => {}
            }
        }
        let r = [w[0], w[1], w[2], w[3]];
        prop_assert_eq!(Response::from_words(r).to_words(), masked(r, [ALL, ALL, 0xFFFF_00FF, 0]));
    }

    #[test]
    fn xenstore(b: [u8; 16], payload: Vec<u8>) {
        let h = Header::from_bytes(b);
        prop_assert_eq!(h.to_bytes(), b);
        prop_assert_eq!(h.payload_len().is_ok(), h.len_bytes <= 4096);
        if let Some(t) = MsgType::from_raw(h.msg_type) {
            prop_assert_eq!(t.raw(), h.msg_type);
        }
        if let Some(e) = Errno::from_payload(&payload) {
            prop_assert!(payload.starts_with(e.name().as_bytes()));
        }
    }

    #[test]
    fn ring_sizes(bytes in 0usize..1 << 20, slot_bytes in 0usize..200) {
        let n = ring::ring_size(bytes, slot_bytes) as usize;
        if n == 0 {
            prop_assert!(slot_bytes == 0 || bytes < 64 + slot_bytes);
        } else {
            prop_assert!(n.is_power_of_two());
            prop_assert!(64 + n * slot_bytes <= bytes && 64 + 2 * n * slot_bytes > bytes);
        }
    }

    #[test]
    fn data_ring_indices(prod: u32, cons: u32, order: u32) {
        let order = order % 12;
        if let Ok(half) = data_ring::half_bytes(order) {
            let ahead = prod.wrapping_sub(cons);
            prop_assert_eq!(data_ring::queued(prod, cons, half).ok(), (ahead <= half).then_some(ahead));
        }
    }
}
