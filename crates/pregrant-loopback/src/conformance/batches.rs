//! Cases of several batches of grant copies in one request.

use super::stage::{Case, Machine, ensure, fail, op, pattern, read, region, release};
use pregrant::PAGE_SIZE;
use pregrant::platform::{Access, CopyBatch, CopyOp, LocalBytes, PeerMem, Platform};
use pregrant::units::GrantRef;
use pregrant::wire::grant::GrantStatus;

/// Each of the batches has its own bytes, and one of them contains an invalid operation.
pub(super) fn fetch<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (region, refs) = region(&front, back.domid(), Access::ReadOnly, 4)?;
    for n in [1, 2, 20] {
        let mut ops: Vec<Vec<CopyOp>> = (0..n)
            .map(|k| vec![op(refs[k % 4], 0, 4000, 0), op(refs[(k + 1) % 4], k * 8, 96, 4000)])
            .collect();
        ops[n / 2][1].gref = GrantRef(u32::MAX);
        ops[n - 1].push(op(refs[0], 0, 1, 4096));
        let mut got = vec![vec![0xEE; 4096]; n];
        let of = got.iter_mut().zip(&mut ops);
        let mut batches: Vec<_> =
            of.map(|(bytes, ops)| CopyBatch { local: LocalBytes::FromPeer(bytes), ops }).collect();
        back.peer().copy_each(front.domid(), &mut batches).map_err(fail)?;
        for (k, (got, ops)) in got.iter().zip(&ops).enumerate() {
            let bad = k == n / 2;
            ensure!(ops[0].status.is_okay(), "batch {k} of {n}: {}", ops[0].status);
            ensure!(ops[1].status.is_okay() != bad, "batch {k} of {n}, the second piece: {}", ops[1].status);
            let second = if bad { vec![0xEE; 96] } else { pattern((k + 1) % 4)[k * 8..k * 8 + 96].to_vec() };
            ensure!(got[..4000] == pattern(k % 4)[..4000], "batch {k} of {n} brought other bytes");
            ensure!(got[4000..] == second, "the second piece of batch {k} of {n} brought other bytes");
        }
        let past = ops[n - 1][2].status;
        ensure!(past == GrantStatus::BAD_COPY_ARG, "a piece past its own batch's bytes: {past}");
    }
    release(&front, region)
}

/// Like [`fetch`], for copies to the granted pages, and for both directions in one request.
pub(super) fn deliver<M: Machine>(m: &M) -> Case {
    let (front, back) = m.pair();
    let (region, refs) = region(&front, back.domid(), Access::ReadWrite, 8)?;
    let bytes: Vec<Vec<u8>> = (0..7).map(|k| pattern(50 + k)).collect();
    let mut ops: Vec<CopyOp> = (0..7).map(|k| op(refs[k], 0, PAGE_SIZE, 0)).collect();
    let (mut last, mut got) = (op(refs[7], 0, PAGE_SIZE, 0), vec![0; PAGE_SIZE]);
    let to = bytes.iter().zip(ops.iter_mut());
    let mut batches: Vec<_> = to
        .map(|(bytes, op)| CopyBatch { local: LocalBytes::ToPeer(bytes), ops: std::slice::from_mut(op) })
        .collect();
    let from = LocalBytes::FromPeer(&mut got);
    batches.insert(3, CopyBatch { local: from, ops: std::slice::from_mut(&mut last) });
    back.peer().copy_each(front.domid(), &mut batches).map_err(fail)?;
    ensure!(last.status.is_okay() && ops.iter().all(|op| op.status.is_okay()), "some batches failed");
    ensure!(got == pattern(7), "a batch that goes the other way brought other bytes");
    for (k, bytes) in bytes.iter().enumerate() {
        ensure!(read(&region, k * PAGE_SIZE, PAGE_SIZE) == *bytes, "page {k} is wrong");
    }
    release(&front, region)
}

/// Copies by a buffer that the platform provides for copies; an invalid operation among several
/// fails alone.
pub(super) fn by_burst_buffer<M: Machine>(m: &M) -> Case {
    const PAGES: usize = 11;
    let (front, back) = m.pair();
    let (region, refs) = region(&front, back.domid(), Access::ReadWrite, PAGES)?;
    let mut buffer = back.peer().burst_buffer((PAGES + 1) * PAGE_SIZE).map_err(fail)?;
    ensure!(buffer.len() == (PAGES + 1) * PAGE_SIZE, "a buffer has {} bytes", buffer.len());
    ensure!(buffer.iter().all(|b| *b == 0), "a buffer with old bytes");
    for (from, len) in [(0, PAGE_SIZE), (1, PAGE_SIZE), (4000, 1500), (2048, 4095), (4095, 2)] {
        let mut wanted = vec![0xEE; buffer.len()];
        buffer.fill(0xEE);
        let mut ops: Vec<CopyOp> =
            (0..PAGES).map(|page| op(refs[page], 0, len, page * PAGE_SIZE + from)).collect();
        ops[3].gref = GrantRef(u32::MAX);
        back.peer().copy(front.domid(), LocalBytes::FromPeer(&mut buffer), &mut ops).map_err(fail)?;
        for (page, op) in ops.iter().enumerate() {
            let (bad, at) = (page == 3, page * PAGE_SIZE + from);
            ensure!(op.status.is_okay() != bad, "{len} bytes to {at}: {}", op.status);
            if !bad {
                wanted[at..at + len].copy_from_slice(&pattern(page)[..len]);
            }
        }
        ensure!(*buffer == *wanted, "{len} bytes each, {from} from a page's start, brought other bytes");
    }
    for page in 0..=PAGES {
        buffer[page * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(&pattern(50 + page));
    }
    let mut ops: Vec<CopyOp> = (0..PAGES).map(|k| op(refs[k], 0, PAGE_SIZE, k * PAGE_SIZE + 100)).collect();
    back.peer().copy(front.domid(), LocalBytes::ToPeer(&buffer), &mut ops).map_err(fail)?;
    ensure!(ops.iter().all(|op| op.status.is_okay()), "of whole pages some failed");
    for page in 0..PAGES {
        let wanted = &buffer[page * PAGE_SIZE + 100..][..PAGE_SIZE];
        ensure!(read(&region, page * PAGE_SIZE, PAGE_SIZE) == wanted, "page {page} is wrong");
    }
    drop(buffer);
    release(&front, region)
}
