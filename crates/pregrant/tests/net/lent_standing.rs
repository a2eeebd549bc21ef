//! Zero-copy payload in pages that stay mapped: of staging buffers, of the guest's own pages once
//! they are mapped, and of those that it asked to map.
//!
//! ```text
//!   model front --ring--> TxQueue: staging, gref-mapping, persistent --tx_zero_copy--> a port that copies, or keeps
//! ```

use crate::lent::{Act, LentPort, bytes_of, headers, play, run};

use pregrant::net::batch::Thresholds;
use pregrant::net::path::gref_mapping::exchange::{GrefExchange, KeepOrder};
use pregrant::net::path::gref_mapping::table::{GrefTable, Mapped};
use pregrant::net::path::held::HEAD_BYTES;
use pregrant::net::path::{
    AnyPath, Chain, FrontPath, GrefMappingPath, MapPath, PersistentPath, StagingPath, TX_ORDER,
};
use pregrant::platform::local::LocalDomain;
use pregrant::platform::{Access, GrantOps, PeerMem};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{
    Extra, RSP_ERROR, RSP_OKAY, TXF_CSUM_BLANK, TXF_DATA_VALIDATED, TXF_MORE_DATA, TxRequest,
};
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::model_front::Slot;
use pregrant_testkit::two_domains::{GUEST, TwoDomains, TxGame, Way};

const PAGES: usize = 16;

/// Frames of page, offset, length: long ones, and two that are not.
const FRAMES: [&[(usize, u16, u16)]; 5] = [
    &[(0, 0, 4096)],
    &[(1, 96, 4000), (2, 0, 4096), (3, 1, 900)],
    &[(4, 0, 60)],
    &[(5, 0, Thresholds::USUAL.lend_from as u16)],
    // Its head is in three slots; one is empty.
    &[(6, 0, 14), (7, 8, 0), (8, 77, 60), (9, 5, 3000)],
];
const IS_LENT: [bool; 5] = [true, true, false, false, true];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Staging,
    Persistent,
    Grefs,
}

const ALL: [By; 3] = [By::Staging, By::Persistent, By::Grefs];

/// A queue all of whose guest's pages are mapped.
fn game(domains: &TwoDomains, by: By) -> TxGame {
    match by {
        By::Staging => {
            let mut g = domains.tx_model(Way::Staging(4096), 0, PAGES);
            let area = g.area.as_ref().expect("a staging way");
            for page in 0..PAGES {
                let content = g.content(page, 0, PAGE_SIZE);
                assert!(area.bytes().copy_in(area.start(page as u16), &content));
            }
            // Nothing is to come by a grant.
            g.refs.fill(GrantRef::NONE);
            g
        }
        By::Persistent => {
            let chain =
                Chain::from(AnyPath::Persistent(PersistentPath::new(256, Access::ReadOnly).expect("memory")));
            let mut g = domains.tx_model_by(chain, None, 0, PAGES);
            for page in 0..PAGES {
                play(&mut g, &[(page, 0, 60)], 0, None);
            }
            g.run().unwrap();
            g.model.answers().unwrap();
            g
        }
        By::Grefs => {
            let chain = Chain::from(grefs());
            let mut g = domains.tx_model_by(chain, None, 0, PAGES);
            for gref in g.refs.clone() {
                let map = domains.host.map(GUEST, &[gref], Access::ReadOnly).unwrap();
                keep(&mut g, gref, map);
            }
            g
        }
    }
}

/// Adds a page to the table, as control does.
fn keep(g: &mut TxGame, gref: GrantRef, map: <LocalDomain as PeerMem>::Map) {
    let exchange = GrefExchange::default();
    exchange.keep(KeepOrder::of([(gref, Mapped::new(map, false))].into_iter()).expect("memory"));
    exchange.apply(table(g));
}

/// A table of gref mappings, empty.
fn grefs() -> AnyPath<LocalDomain> {
    AnyPath::GrefMapping(
        GrefMappingPath::new(Some(Box::new(GrefTable::new(64).expect("memory")))).expect("memory"),
    )
}

fn table(g: &mut TxGame) -> &mut GrefTable<<LocalDomain as PeerMem>::Map> {
    let of_path = |path| match path {
        &mut AnyPath::GrefMapping(ref mut path) => path.table_mut(),
        _ => None,
    };
    g.back.chain_mut().paths_mut().iter_mut().find_map(of_path).expect("a table")
}

/// Puts a frame on the ring, with any kind of reference that the guest may use.
fn put(g: &mut TxGame, fragments: &[(usize, u16, u16)]) {
    if g.area.is_none() {
        return play(g, fragments, 0, None);
    }
    let total: u16 = fragments.iter().map(|f| f.2).sum();
    let slots = fragments.iter().enumerate().map(|(k, &(page, offset, len))| {
        let flags = if k + 1 < fragments.len() { TXF_MORE_DATA } else { 0 };
        let size = if k == 0 { total } else { len };
        Slot::Data(TxRequest { gref: 0, offset, flags, id: page as u16, size })
    });
    g.model.play(&slots.collect::<Vec<_>>());
}

fn named(act: Act) -> LentPort<'static> {
    LentPort { named: true, ..LentPort::new(act) }
}

#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn long_frames_are_lent_behind_their_heads_and_short_ones_are_copied() {
    for by in ALL {
        let domains = TwoDomains::new();
        let mut g = game(&domains, by);
        let before = g.back.stats().grant_ops;
        let mut port = named(Act::Copy);
        FRAMES.iter().for_each(|f| put(&mut g, f));
        run(&mut g, &domains, &mut port).unwrap();
        assert_eq!(port.seen.len(), FRAMES.len(), "{by:?}");
        for ((seen, f), lent) in port.seen.iter().zip(FRAMES).zip(IS_LENT) {
            let whole = bytes_of(&g, f);
            assert_eq!((seen.len, seen.whole), (whole.len(), !lent), "{by:?}");
            assert!(seen.bytes == whole, "{by:?}");
            let head = if lent { HEAD_BYTES.into() } else { whole.len() };
            assert!(seen.head == whole[..head], "{by:?}");
        }
        let (stats, none) = (g.back.stats(), GrantOps::default());
        assert_eq!((stats.errors, stats.dropped), (0, 0));
        let ops = stats.grant_ops;
        assert_eq!((ops.copies - before.copies, ops.maps - before.maps), (none.copies, none.maps), "{by:?}");
        let answers = g.model.answers().unwrap();
        assert!(answers.len() == FRAMES.len() && answers.iter().flatten().all(|&s| s == RSP_OKAY));

        // A port that might skip them has private bytes: the path's work is to copy.
        let mut port = LentPort::new(Act::Copy);
        FRAMES.iter().for_each(|f| put(&mut g, f));
        run(&mut g, &domains, &mut port).unwrap();
        assert_eq!((port.seen.len(), port.private), (0, FRAMES.map(|f| bytes_of(&g, f)).to_vec()));
        g.close();
        domains.assert_empty();
    }
}

/// Frames are answered when the port has completed them, in order; later frames go on meanwhile.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn kept_frames_are_answered_late_one_by_one() {
    for by in ALL {
        let domains = TwoDomains::new();
        let mut g = game(&domains, by);
        let mut port = named(Act::Keep);
        [0, 1, 2].iter().for_each(|&f| put(&mut g, FRAMES[f]));
        run(&mut g, &domains, &mut port).unwrap();
        put(&mut g, &[(10, 0, 4096)]);
        run(&mut g, &domains, &mut port).unwrap();
        assert_eq!((port.seen.len(), port.shelf.kept().len()), (4, 3), "{by:?}");
        assert!(
            !g.back.is_late() && g.back.final_check() == Ok(false),
            "a worker that waits for a port sleeps"
        );
        port.shelf.finish(1);
        run(&mut g, &domains, &mut port).unwrap();
        assert_eq!(g.model.answers().unwrap().len(), 0, "{by:?}: the first is kept");
        port.shelf.finish(0);
        run(&mut g, &domains, &mut port).unwrap();
        assert_eq!(g.model.answers().unwrap().len(), 3, "{by:?}");
        // One that is done with before the port's call is over.
        port.shelf.finish(0);
        port.act = Act::KeepShortly;
        put(&mut g, FRAMES[1]);
        run(&mut g, &domains, &mut port).unwrap();
        assert_eq!(g.model.answers().unwrap().len(), 2, "{by:?}");
        // A queue that is dropped has the port give up, before its pages go.
        port.act = Act::Keep;
        put(&mut g, FRAMES[0]);
        run(&mut g, &domains, &mut port).unwrap();
        g.close();
        assert_eq!(port.shelf.given_up(), 1, "{by:?}");
        domains.assert_empty();
    }
}

/// Pages of a held frame stay mapped until it is completed, whatever the store's limit, or the
/// guest, asks for meanwhile.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn pages_of_a_kept_frame_stay() {
    let domains = TwoDomains::new();
    let mut g = game(&domains, By::Persistent);
    let mut port = named(Act::Keep);
    let before = domains.xen.counts().mapped;
    put(&mut g, FRAMES[1]);
    run(&mut g, &domains, &mut port).unwrap();
    g.back.chain_mut().limit_pages(&domains.host, 0);
    assert_eq!(domains.xen.counts().mapped, before - PAGES + 3);
    port.shelf.finish(0);
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!((domains.xen.counts().mapped, g.model.answers().unwrap().len()), (before - PAGES, 1));
    g.close();
    domains.assert_empty();

    let domains = TwoDomains::new();
    let mut g = game(&domains, By::Grefs);
    let mut port = named(Act::Keep);
    let gref = g.refs[0];
    // The same page twice: both frames hold it.
    put(&mut g, FRAMES[0]);
    put(&mut g, FRAMES[0]);
    run(&mut g, &domains, &mut port).unwrap();
    for held in [true, true, false] {
        assert_eq!(table(&mut g).is_held(gref), held);
        if held {
            assert!(table(&mut g).remove(gref).is_none());
            port.shelf.finish(0);
            run(&mut g, &domains, &mut port).unwrap();
        }
    }
    assert!(table(&mut g).remove(gref).is_some());
    g.close();
    domains.assert_empty();
}

/// A buffer is a frame's alone, of its batch.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn a_buffer_that_is_named_twice_costs_the_second_frame() {
    let domains = TwoDomains::new();
    let mut g = game(&domains, By::Staging);
    let mut port = named(Act::Copy);
    put(&mut g, FRAMES[0]);
    put(&mut g, &[(1, 0, 4000), (0, 0, 4096)]);
    // Twice in one frame; and bytes beyond a buffer.
    put(&mut g, &[(2, 0, 4000), (2, 0, 4000)]);
    put(&mut g, &[(3, 0, 3000), (300, 0, 4096)]);
    put(&mut g, &[(4, 0, 4096)]);
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!(port.seen.iter().map(|seen| seen.len).collect::<Vec<_>>(), [4096, 4096]);
    let answers = g.model.answers().unwrap();
    let failed: Vec<bool> = answers.iter().map(|frame| frame.contains(&RSP_ERROR)).collect();
    assert_eq!(failed, [false, true, true, true, false]);
    g.close();
    domains.assert_empty();
}

/// A frame whose pages are not all mapped is served as before, without zero-copy payload.
#[test]
fn what_is_not_all_there_is_copied() {
    let domains = TwoDomains::new();
    let mut g = game(&domains, By::Grefs);
    let gref = g.refs[2];
    domains.host.unmap(&mut table(&mut g).remove(gref).into_iter().collect());
    let mut port = named(Act::Copy);
    put(&mut g, FRAMES[1]);
    put(&mut g, FRAMES[0]);
    run(&mut g, &domains, &mut port).unwrap();
    assert_eq!(port.seen.iter().map(|seen| seen.whole).collect::<Vec<_>>(), [true, false]);
    assert!(port.seen[0].bytes == bytes_of(&g, FRAMES[1]) && port.seen[1].bytes == bytes_of(&g, FRAMES[0]));
    assert_eq!(g.back.stats().grant_ops.copies, 1, "the page that is not there");
    g.close();
    domains.assert_empty();
}

/// Two paths provide zero-copy payload for frames of one batch in turns: each frame has its own
/// payload.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn a_batch_has_nothing_of_the_one_before() {
    let domains = TwoDomains::new();
    let (area, buffers) = domains.stage(Way::Staging(4096), Access::ReadOnly, 0).unzip();
    let staging = buffers.map(|buffers| AnyPath::Staging(StagingPath::new(buffers).expect("memory")));
    let persistent = AnyPath::Persistent(PersistentPath::new(256, Access::ReadOnly).expect("memory"));
    let others = [persistent, AnyPath::Map(MapPath::default()), grefs()];
    let chain = Chain::new(TX_ORDER, staging.into_iter().chain(others));
    let mut g = domains.tx_model_by(chain, area, 0, PAGES);
    let staged = g.area.as_ref().expect("a staging way");
    let content = g.content(9, 0, PAGE_SIZE);
    assert!(staged.bytes().copy_in(staged.start(9), &content));
    let gref = g.refs[0];
    let map = domains.host.map(GUEST, &[gref], Access::ReadOnly).unwrap();
    keep(&mut g, gref, map);
    // Page 1 is seen, and stays mapped.
    play(&mut g, &[(1, 0, 60)], 0, None);
    g.run().unwrap();
    for act in [Act::Copy, Act::Skip, Act::KeepShortly] {
        for page in [0, 9, 1, 5, 9, 0, 5, 1] {
            // Of a batch of `map`'s that fails nothing is left for the next one: a page that cannot
            // be mapped, and none that is named.
            for bad in [GrantRef(0xDEAD), GrantRef::NONE] {
                let good = std::mem::replace(&mut g.refs[7], bad);
                let mut port = named(if page % 2 == 0 { Act::Copy } else { Act::Skip });
                play(&mut g, &[(6, 0, 4000), (7, 0, 4000)], 0, None);
                run(&mut g, &domains, &mut port).unwrap();
                g.refs[7] = good;
                g.model.answers().unwrap();
            }
            let before = g.back.stats();
            let mut port = named(act);
            if page == 9 {
                put(&mut g, &[(9, 0, 4096)]);
            } else {
                play(&mut g, &[(page, 0, 4096)], 0, None);
            }
            run(&mut g, &domains, &mut port).unwrap();
            let seen = &port.seen[0];
            assert!(!seen.whole && seen.head == g.content(page, 0, 128), "{act:?}: {page}");
            assert!(act == Act::Skip || seen.bytes == g.content(page, 0, 4096), "{act:?}: {page}");
            assert_eq!(g.model.answers().unwrap(), [vec![RSP_OKAY]], "{act:?}: {page}");
            let now = g.back.stats();
            assert_eq!((now.errors, now.frames), (before.errors, before.frames + 1), "{act:?}: {page}");
            if page == 0 || page == 9 {
                assert_eq!(now.grant_ops, before.grant_ops, "{act:?}: {page}");
            }
            // It was seen; the next time it is to come by the other path again.
            g.back.chain_mut().limit_pages(&domains.host, 1);
        }
    }
    g.close();
    domains.assert_empty();
}

/// As with `map`: parsing uses private bytes, so a guest that rewrites a frame changes only its
/// payload.
#[test]
#[cfg_attr(miri, ignore = "long; the others make the same accesses")]
fn xsa_155_what_is_rewritten_after_the_check_is_payload_alone() {
    for by in ALL {
        let domains = TwoDomains::new();
        let mut g = game(&domains, by);
        let frame = headers(0, 3000);
        let (blank, gso) = (TXF_CSUM_BLANK | TXF_DATA_VALIDATED, Extra::Gso { size: 500, gso_type: 2 });
        let len = frame.len() as u16;
        let rewrite: Box<dyn Fn() + Sync> = match &g.area {
            Some(area) => {
                assert!(area.bytes().copy_in(area.start(0), &frame));
                let (bytes, at) = (area.bytes().clone(), area.start(0));
                Box::new(move || assert!(bytes.copy_in(at, &[0xEE; PAGE_SIZE])))
            }
            None => {
                assert!(g.memory.copy_in(0, &frame));
                let memory = g.memory.clone();
                Box::new(move || assert!(memory.copy_in(0, &[0xEE; PAGE_SIZE])))
            }
        };
        let mut port = LentPort { named: true, between: &*rewrite, ..LentPort::new(Act::Copy) };
        let gref = g.refs[0].0;
        let first = TxRequest {
            gref,
            offset: 0,
            flags: blank | pregrant::wire::netif::TXF_EXTRA_INFO,
            id: 0,
            size: len,
        };
        g.model.play(&[Slot::Data(first), Slot::extra(gso, false)]);
        run(&mut g, &domains, &mut port).unwrap();
        let seen = &port.seen[0];
        assert!(!seen.whole && seen.len == frame.len(), "{by:?}");
        assert!(seen.head == frame[..128] && seen.bytes[..128] == frame[..128], "{by:?}");
        assert!(seen.bytes[128..].iter().all(|&b| b == 0xEE), "{by:?}: it was rewritten");
        drop(port);
        drop(rewrite);
        g.close();
        domains.assert_empty();
    }
}
