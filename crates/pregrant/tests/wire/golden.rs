//! Each wire struct as bytes written by hand from the offsets in docs/protocol, read and written.

use pregrant::wire::blkif::{Abi, DiscardRequest, IndirectRequest, Request, Response, RwRequest, Segment};
use pregrant::wire::grant::{GTF_PERMIT_ACCESS, GTF_READONLY, GTF_SUB_PAGE, GTF_TRANSITIVE};
use pregrant::wire::grant::{GrantEntryV1, GrantEntryV2};
use pregrant::wire::netif::{self, Extra, RxRequest, RxResponse, TxRequest, TxResponse};
use pregrant::wire::netif_ctrl::{CtrlRequest, CtrlResponse, CtrlStatus, CtrlType, GREF_READONLY, GrefEntry};
use pregrant::wire::staging::StagingEntry;
use pregrant::wire::xs::{Header, MsgType};
use pregrant::wire::{data_ring, ring};

/// Bytes as the words that a ring hands out. Missing bytes at the end read as zero.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    assert!(bytes.len() <= 4 * N && bytes.len().is_multiple_of(4));
    let mut w = [0; N];
    for (w, o) in w.iter_mut().zip(bytes.chunks_exact(4)) {
        *w = u32::from_le_bytes(o.try_into().unwrap());
    }
    w
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

#[test]
fn netif_tx_request() {
    let golden = [
        0x78, 0x56, 0x34, 0x12, // gref
        0x02, 0x01, // offset
        0x0C, 0x00, // flags: more_data, extra_info
        0xCD, 0xAB, // id
        0xFF, 0xFF, // size
    ];
    let plain = TxRequest {
        gref: 0x1234_5678,
        offset: 0x0102,
        flags: netif::TXF_MORE_DATA | netif::TXF_EXTRA_INFO,
        id: 0xABCD,
        size: 65535,
    };
    assert_eq!(TxRequest::from_words(words(&golden)), plain);
    assert_eq!(bytes(&plain.to_words()), golden);
}

#[test]
fn netif_tx_response() {
    for (golden, plain) in [
        ([0xCD, 0xAB, 0x00, 0x00], TxResponse { id: 0xABCD, status: netif::RSP_OKAY }),
        ([0xCD, 0xAB, 0xFF, 0xFF], TxResponse { id: 0xABCD, status: netif::RSP_ERROR }),
        ([0xCD, 0xAB, 0xFE, 0xFF], TxResponse { id: 0xABCD, status: netif::RSP_DROPPED }),
        ([0x00, 0x00, 0x01, 0x00], TxResponse { id: 0, status: netif::RSP_NULL }),
    ] {
        let [w] = words(&golden);
        assert_eq!(TxResponse::from_word(w), plain);
        assert_eq!(bytes(&[plain.to_word()]), golden);
    }
}

#[test]
fn netif_rx_request() {
    let golden = [
        0xFF, 0x00, // id
        0x00, 0x00, // pad
        0x08, 0x00, 0x00, 0x80, // gref
    ];
    let plain = RxRequest { id: 255, gref: 0x8000_0008 };
    assert_eq!(RxRequest::from_words(words(&golden)), plain);
    assert_eq!(bytes(&plain.to_words()), golden);
}

#[test]
fn netif_rx_response() {
    let golden = [
        0x34, 0x12, // id
        0x40, 0x00, // offset
        0x03, 0x00, // flags: data_validated, csum_blank
        0xEA, 0x05, // status: 1514 bytes
    ];
    let plain = RxResponse {
        id: 0x1234,
        offset: 64,
        flags: netif::RXF_DATA_VALIDATED | netif::RXF_CSUM_BLANK,
        status: 1514,
    };
    assert_eq!(RxResponse::from_words(words(&golden)), plain);
    assert_eq!(bytes(&plain.to_words()), golden);

    let golden = [0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0xFF, 0xFF];
    let plain = RxResponse { id: 1, offset: 0, flags: 0, status: netif::RSP_ERROR };
    assert_eq!(RxResponse::from_words(words(&golden)), plain);
    assert_eq!(bytes(&plain.to_words()), golden);
}

#[test]
fn netif_extra_info() {
    let mac = [0x01, 0x00, 0x5E, 0x7F, 0xFF, 0xFA];
    for (golden, plain, more) in [
        // type, flags, MSS 1448, TCPv4, pad, features
        ([1, 0, 0xA8, 0x05, 1, 0, 0, 0], Extra::Gso { size: 1448, gso_type: netif::GSO_TYPE_TCPV4 }, false),
        ([1, 1, 0x01, 0x00, 2, 0, 0, 0], Extra::Gso { size: 1, gso_type: netif::GSO_TYPE_TCPV6 }, true),
        // type, flags, MAC
        ([2, 0, 0x01, 0x00, 0x5E, 0x7F, 0xFF, 0xFA], Extra::McastAdd(mac), false),
        ([3, 1, 0x01, 0x00, 0x5E, 0x7F, 0xFF, 0xFA], Extra::McastDel(mac), true),
        // type, flags, hash type, algorithm, value
        (
            [4, 1, 3, 1, 0x7D, 0x20, 0x07, 0x40],
            Extra::Hash { hash_type: 3, algorithm: netif::HASH_ALGORITHM_TOEPLITZ, value: 0x4007_207D },
            true,
        ),
        // type, flags, headroom, pads
        ([5, 0, 0x00, 0x01, 0, 0, 0, 0], Extra::Xdp { headroom: 256 }, false),
    ] {
        assert_eq!(Extra::parse(words(&golden)), Ok((plain, more)));
        assert_eq!(bytes(&plain.to_words(more)), golden);

        let in_tx_slot = [&golden[..], &[0; 4]].concat();
        assert_eq!(Extra::parse_tx(words(&in_tx_slot)), Ok((plain, more)));
        assert_eq!(bytes(&plain.to_tx_words(more)), in_tx_slot);
    }
}

#[test]
fn netif_ctrl_request() {
    let golden = [
        0x02, 0x01, // id
        0x09, 0x00, // type: ADD_GREF_MAPPING
        0x01, 0x00, 0x00, 0x00, // queue
        0x44, 0x33, 0x22, 0x11, // gref of the list
        0x00, 0x02, 0x00, 0x00, // entries
    ];
    let plain =
        CtrlRequest { id: 0x0102, msg_type: CtrlType::AddGrefMapping.raw(), data: [1, 0x1122_3344, 512] };
    assert_eq!(CtrlRequest::from_words(words(&golden)), plain);
    assert_eq!(bytes(&plain.to_words()), golden);
}

#[test]
fn netif_ctrl_response() {
    let golden = [
        0x02, 0x01, // id
        0x08, 0x00, // type: GET_GREF_MAPPING_SIZE
        0x00, 0x00, 0x00, 0x00, // status: SUCCESS
        0x00, 0x01, 0x00, 0x00, // data
    ];
    let request = CtrlRequest { id: 0x0102, msg_type: 8, data: [0; 3] };
    let plain = CtrlResponse::to(&request, CtrlStatus::Success, 256);
    assert_eq!(CtrlResponse::from_words(words(&golden)), plain);
    assert_eq!(bytes(&plain.to_words()), golden);

    let golden = [0x00, 0x00, 0x04, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00];
    let plain = CtrlResponse { id: 0, msg_type: 4, status: CtrlStatus::InvalidParameter.raw(), data: 0 };
    assert_eq!(CtrlResponse::from_words(words(&golden)), plain);
    assert_eq!(bytes(&plain.to_words()), golden);
}

#[test]
fn netif_gref() {
    let golden = [
        0x09, 0x00, 0x00, 0x01, // ref
        0x01, 0x00, // flags: readonly
        0x02, 0x00, // status: INVALID_PARAMETER
    ];
    let plain = GrefEntry { gref: 0x0100_0009, flags: GREF_READONLY, status: 2 };
    assert_eq!(GrefEntry::from_bytes(golden), plain);
    assert_eq!(plain.to_bytes(), golden);
}

#[test]
fn staging_entry() {
    let golden = [
        0x22, 0x00, // id
        0x44, 0x33, 0x22, 0x11, // gref, unaligned
        0x80, 0x00, // offset
    ];
    let plain = StagingEntry { id: 34, gref: 0x1122_3344, offset: 128 };
    assert_eq!(StagingEntry::from_bytes(golden), plain);
    assert_eq!(plain.to_bytes(), golden);
    assert_eq!(StagingEntry::TERMINATOR.to_bytes(), [0; 8]);
}

#[test]
fn grant_entry_v1() {
    let golden = [
        0x05, 0x00, // flags: permit_access, readonly
        0x07, 0x00, // domid
        0xEF, 0xBE, 0xAD, 0xDE, // frame
    ];
    let plain = GrantEntryV1 { flags: GTF_PERMIT_ACCESS | GTF_READONLY, domid: 7, frame: 0xDEAD_BEEF };
    assert_eq!(GrantEntryV1::from_words(words(&golden)), plain);
    assert_eq!(bytes(&plain.to_words()), golden);
}

#[test]
fn grant_entry_v2() {
    let full = [
        0x01, 0x00, // flags: permit_access
        0x07, 0x00, // domid
        0x00, 0x00, 0x00, 0x00, // pad
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, // frame
    ];
    let sub_page = [
        0x01, 0x01, // flags: permit_access, sub_page
        0x07, 0x00, // domid
        0x40, 0x00, // page_off
        0x00, 0x08, // length
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, // frame
    ];
    let transitive = [
        0x03, 0x00, // flags: transitive
        0x07, 0x00, // domid
        0x09, 0x00, // trans_domid
        0x00, 0x00, // pad
        0x44, 0x33, 0x22, 0x11, // gref
        0x00, 0x00, 0x00, 0x00, // pad
    ];
    let frame = 0x0102_0304_0506_0708;
    for (golden, plain) in [
        (full, GrantEntryV2::Full { flags: GTF_PERMIT_ACCESS, domid: 7, frame }),
        (
            sub_page,
            GrantEntryV2::SubPage {
                flags: GTF_PERMIT_ACCESS | GTF_SUB_PAGE,
                domid: 7,
                page_off: 64,
                length: 2048,
                frame,
            },
        ),
        (
            transitive,
            GrantEntryV2::Transitive { flags: GTF_TRANSITIVE, domid: 7, trans_domid: 9, gref: 0x1122_3344 },
        ),
    ] {
        assert_eq!(GrantEntryV2::from_words(words(&golden)), plain);
        assert_eq!(bytes(&plain.to_words()), golden);
    }
}

/// Puts `tail` after the bytes that both ABIs share; the 64-bit one has 4 bytes of padding in
/// between.
fn blk_slot(abi: Abi, head: [u8; 4], tail: &[u8]) -> Vec<u8> {
    let mut slot = head.to_vec();
    if abi == Abi::X86_64 {
        slot.extend([0; 4]);
    }
    slot.extend(tail);
    slot.resize(abi.slot_bytes(), 0);
    slot
}

fn check_blk(abi: Abi, golden: &[u8], plain: Request) {
    assert_eq!(Request::from_words(abi, &words(golden)), plain, "{abi:?}");
    assert_eq!(bytes(&plain.to_words(abi)[..abi.slot_words()]), golden, "{abi:?}");
}

#[test]
fn blkif_request() {
    #[rustfmt::skip]
    let tail = [
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, // id
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, // sector
        0x0A, 0x00, 0x00, 0x00, 0, 7, 0, 0, // gref, first, last, pad
        0x0B, 0x00, 0x00, 0x00, 1, 6, 0, 0,
        0x0C, 0x00, 0x00, 0x00, 2, 5, 0, 0,
        0x00, 0x00, 0x00, 0x00, 0, 0, 0, 0,
        0x00, 0x00, 0x00, 0x00, 0, 0, 0, 0,
        0x00, 0x00, 0x00, 0x00, 0, 0, 0, 0,
        0x00, 0x00, 0x00, 0x00, 0, 0, 0, 0,
        0x00, 0x00, 0x00, 0x00, 0, 0, 0, 0,
        0x00, 0x00, 0x00, 0x00, 0, 0, 0, 0,
        0x00, 0x00, 0x00, 0x00, 0, 0, 0, 0,
        0x44, 0x33, 0x22, 0x11, 3, 4, 0, 0, // the last one ends the slot
    ];
    let mut seg = [Segment::default(); 11];
    seg[0] = Segment { gref: 10, first_sect: 0, last_sect: 7 };
    seg[1] = Segment { gref: 11, first_sect: 1, last_sect: 6 };
    seg[2] = Segment { gref: 12, first_sect: 2, last_sect: 5 };
    seg[10] = Segment { gref: 0x1122_3344, first_sect: 3, last_sect: 4 };
    let plain = RwRequest {
        op: 1,
        nr_segments: 11,
        handle: 0xCA00,
        id: 0x0102_0304_0506_0708,
        sector: 0x1112_1314_1516_1718,
        seg,
    };
    for (abi, size) in [(Abi::X86_64, 112), (Abi::X86_32, 108)] {
        let golden = blk_slot(abi, [1, 11, 0x00, 0xCA], &tail);
        assert_eq!(golden.len(), size);
        check_blk(abi, &golden, Request::ReadWrite(plain));
    }
    let flush = RwRequest { op: 3, id: 0x0102_0304_0506_0708, ..RwRequest::default() };
    for abi in [Abi::X86_64, Abi::X86_32] {
        check_blk(abi, &blk_slot(abi, [3, 0, 0, 0], &tail[..8]), Request::ReadWrite(flush));
    }
}

#[test]
fn blkif_request_discard() {
    let tail = [
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, // id
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, // sector
        0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, // nr_sectors
    ];
    let plain = DiscardRequest {
        flag: 1,
        handle: 0xCA10,
        id: 0x0102_0304_0506_0708,
        sector: 0x1112_1314_1516_1718,
        nr_sectors: 0x2122_2324_2526_2728,
    };
    for abi in [Abi::X86_64, Abi::X86_32] {
        check_blk(abi, &blk_slot(abi, [5, 1, 0x10, 0xCA], &tail), Request::Discard(plain));
    }
}

#[test]
fn blkif_request_indirect() {
    #[rustfmt::skip]
    let tail = [
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, // id
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, // sector
        0x20, 0xCA, 0x00, 0x00, // handle, pad
        0x10, 0x00, 0x00, 0x00, // grefs
        0x11, 0x00, 0x00, 0x00,
        0x12, 0x00, 0x00, 0x00,
        0x13, 0x00, 0x00, 0x00,
        0x14, 0x00, 0x00, 0x00,
        0x15, 0x00, 0x00, 0x00,
        0x16, 0x00, 0x00, 0x00,
        0x44, 0x33, 0x22, 0x11,
    ];
    let plain = IndirectRequest {
        op: 0,
        nr_segments: 4096,
        handle: 0xCA20,
        id: 0x0102_0304_0506_0708,
        sector: 0x1112_1314_1516_1718,
        grefs: [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x1122_3344],
    };
    for abi in [Abi::X86_64, Abi::X86_32] {
        check_blk(abi, &blk_slot(abi, [6, 0, 0x00, 0x10], &tail), Request::Indirect(plain));
    }
}

#[test]
fn blkif_request_of_an_unknown_op_keeps_its_id() {
    let id = [0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01];
    for abi in [Abi::X86_64, Abi::X86_32] {
        for op in [4, 7, 255] {
            let plain = Request::Other { op, id: 0x0102_0304_0506_0708 };
            check_blk(abi, &blk_slot(abi, [op, 0, 0, 0], &id), plain);
            assert_eq!(plain.id(), 0x0102_0304_0506_0708);
        }
    }
}

#[test]
fn blkif_segment_of_an_indirect_page() {
    let golden = [0x44, 0x33, 0x22, 0x11, 2, 5, 0, 0];
    let plain = Segment { gref: 0x1122_3344, first_sect: 2, last_sect: 5 };
    assert_eq!(Segment::from_bytes(golden), plain);
    assert_eq!(plain.to_bytes(), golden);
    assert_eq!(Segment::from_words(words(&golden)), plain);
    assert_eq!(bytes(&plain.to_words()), golden);
}

#[test]
fn blkif_response() {
    let golden = [
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, // id
        0x06, // op
        0x00, // pad
        0xFE, 0xFF, // status: EOPNOTSUPP
        0x00, 0x00, 0x00, 0x00, // pad, not with x86_32
    ];
    let plain = Response { id: 0x0102_0304_0506_0708, op: 6, status: -2 };
    for abi in [Abi::X86_64, Abi::X86_32] {
        let golden = &golden[..4 * abi.response_words()];
        assert_eq!(Response::from_words(words(golden)), plain);
        assert_eq!(bytes(&plain.to_words()[..abi.response_words()]), golden);
    }
}

#[test]
fn xenstore_header() {
    let golden = [
        0x0B, 0x00, 0x00, 0x00, // type: WRITE
        0x78, 0x56, 0x34, 0x12, // req_id
        0x01, 0x00, 0x00, 0x00, // tx_id
        0x00, 0x10, 0x00, 0x00, // len
    ];
    let plain = Header { msg_type: MsgType::Write.raw(), req_id: 0x1234_5678, tx_id: 1, len_bytes: 4096 };
    assert_eq!(Header::from_bytes(golden), plain);
    assert_eq!(plain.to_bytes(), golden);
}

/// These two are read and written field by field, so their offsets describe them completely.
#[test]
fn headers_that_are_shared() {
    let ring = [ring::REQ_PROD, ring::REQ_EVENT, ring::RSP_PROD, ring::RSP_EVENT, ring::PRIVATE];
    assert_eq!(ring, [0, 4, 8, 12, 16]);
    assert_eq!(ring::HEADER_BYTES, 64);
    let data = [data_ring::IN_CONS, data_ring::IN_PROD, data_ring::IN_ERROR];
    assert_eq!(data, [0, 4, 8]);
    let data = [data_ring::OUT_CONS, data_ring::OUT_PROD, data_ring::OUT_ERROR];
    assert_eq!(data, [64, 68, 72]);
    assert_eq!((data_ring::RING_ORDER, data_ring::REFS), (128, 132));
}
