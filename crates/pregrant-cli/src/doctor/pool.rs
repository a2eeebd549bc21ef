//! Reports how many staging buffers or pages a vif has, and what prevents more. The aim is the
//! number that twice a core's private cache holds ([`buffer_pool`]), within the number of pages
//! that the domain may grant and that the back allows.

use super::finding::{Finding, plain};
use pregrant::PAGE_SIZE;
use pregrant::net::features::MAPPED_PAGES;
use pregrant::net::path::staging::keys::MAX_PAGES;
use pregrant::net::path::staging::list::DataLen;
use pregrant_host::drivers::net::buffer_pool;
use pregrant_host::drivers::status::VifStatus;

/// Number of slots of a ring of one page.
const SLOTS: u64 = 256;

/// The back's keys that limit the number of buffers.
pub const KEYS: [&str; 2] = [MAX_PAGES, MAPPED_PAGES];

/// Reports for a front how many buffers `--buffers auto` gives a vif of one queue. `values` are the
/// back's values of [`KEYS`], and `grantable` is the number of pages that the domain may grant
/// (None: unknown).
pub fn of_auto(vif: &str, values: &[Option<String>], grantable: Option<u64>) -> Finding {
    bounded(vif, values, grantable, buffer_pool::pool_bytes())
}

fn bounded(vif: &str, values: &[Option<String>], grantable: Option<u64>, bytes: u64) -> Finding {
    let of = |k: usize| values.get(k).and_then(|value| value.as_deref()?.trim().parse::<u64>().ok());
    let page = PAGE_SIZE as u64;
    let granted = buffer_pool::share(2, grantable);
    // Of a page with a frame in it half is used, as a rule.
    let pools = [("buffers", "staging", bytes / page, 0), ("pages", "persistent", 2 * bytes / page, 1)];
    let mut words = Vec::new();
    let mut remedies = Vec::new();
    for (what, path, wanted, k) in pools {
        let allowed = of(k).map(|pages| pages / 2);
        let has = wanted.min(granted).min(allowed.unwrap_or(0));
        let why = match allowed {
            _ if has == wanted => String::new(),
            None => format!(": its back has no key {}", KEYS[k]),
            Some(allowed) if allowed <= granted => {
                format!(": {} of its back allows {} for both", KEYS[k], 2 * allowed)
            }
            Some(_) => {
                remedies.push("echo 4096 > /sys/module/xen_gntalloc/parameters/limit");
                format!(": a quarter of what gntalloc grants is for both, {} pages", grantable.unwrap_or(0))
            }
        };
        let fewer = if has == wanted { String::new() } else { format!(", not {wanted}{why}") };
        let has = match has {
            0 => "one for each slot".into(),
            // A ring of one page has as many slots, and a buffer has a page at most.
            pages if pages < SLOTS => {
                format!("in {pages} pages each way, or one for each slot if that is more")
            }
            pages => format!("in {pages} pages each way"),
        };
        words.push(format!("{what} by --path {path} {has}{fewer}"));
    }
    let found = format!("{vif}: front --buffers auto would have, with one queue, {}", words.join("; "));
    match remedies.first() {
        Some(remedy) => Finding::note(found).then(remedy),
        None => Finding::ok(found),
    }
}

/// Reports for a back the staging buffers of a connected vif, and what prevents more. None: the vif
/// has none.
pub fn of_served(vif: &str, status: &VifStatus, offer: Option<&str>) -> Option<Finding> {
    let dirs: Vec<_> = status.queues.iter().flat_map(|queue| [&queue.tx, &queue.rx]).collect();
    let pools = || dirs.iter().filter_map(|dir| Some((DataLen::new(dir.data_len?)?, dir.buffers?)));
    let lists = pools().count() as u32;
    let (len, fewest) = pools().min_by_key(|(_, buffers)| *buffers)?;
    let has = format!("{vif}: {fewest} staging buffers of a direction and queue");
    let allowed = |pages: u32| len.buffers_within(pages, lists);
    let offer = offer.and_then(|pages| pages.trim().parse().ok());
    Some(match (offer, status.refused_lists.first()) {
        (_, Some(why)) => Finding::note(format_args!("{has}: a list was refused: {}", plain(why.as_bytes()))),
        (None, None) => {
            Finding::ok(format_args!("{has}: it connected to a back that allows no more than slots"))
        }
        (Some(pages), None) if fewest > allowed(pages) => Finding::ok(format_args!(
            "{has}, one for each slot: in the {pages} pages that a vif may have there are no more for its {lists} lists"
        )),
        (Some(pages), None) if fewest == allowed(pages) => {
            Finding::ok(format_args!("{has}: no more of them are in the {pages} pages that a vif may have"))
        }
        (Some(pages), None) => Finding::ok(format_args!(
            "{has}, of {} that it may have: its front asked for so many or could grant no more (pregrant doctor in the guest), \
             or its share of its guest's pages held no more (this backend's log)",
            allowed(pages)
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Rank;
    use super::*;
    use crate::top::sample;

    fn keys(lists: &str, mapped: &str) -> Vec<Option<String>> {
        [lists, mapped].map(|text| Some(text.to_string()).filter(|text| !text.is_empty())).into()
    }

    #[test]
    fn each_bound_is_named() {
        let of = |values: &[Option<String>], grantable| bounded("vif 0", values, grantable, 2 << 20);
        let plenty = of(&keys("4096", "4096"), None);
        assert_eq!(
            plenty.text,
            "vif 0: front --buffers auto would have, with one queue, buffers by --path staging in 512 pages each way; \
             pages by --path persistent in 1024 pages each way"
        );
        let ours = of(&keys("896", "896"), Some(1 << 20));
        assert_eq!((plenty.rank, ours.rank), (Rank::Ok, Rank::Ok));
        assert!(
            ours.text.contains(
                "in 448 pages each way, not 512: staging-grants-max-pages of its back allows 896 for both"
            ),
            "{ours}"
        );
        let grants = of(&keys("896", "896"), Some(1024));
        assert_eq!(grants.rank, Rank::Note);
        assert!(
            grants.text.contains(
                "128 pages each way, or one for each slot if that is more, not 512: a quarter of what gntalloc grants"
            ),
            "{grants}"
        );
        let older = of(&keys("", "x"), None);
        assert!(older.text.contains("one for each slot, not 512: its back has no key"), "{older}");
    }

    #[test]
    fn a_served_vif_says_what_bounds_its_buffers() {
        let mut status = sample::status().vifs.remove(0);
        status.queues.truncate(1);
        let mut said = |buffers: Option<u32>, refused: &[&str], offer: Option<&str>| {
            let queue = &mut status.queues[0];
            for dir in [&mut queue.tx, &mut queue.rx] {
                (dir.data_len, dir.buffers) = (buffers.map(|_| 2048), buffers);
            }
            status.refused_lists = refused.iter().map(|why| (*why).to_string()).collect();
            of_served("vif 5.0", &status, offer).map(|found| found.text)
        };
        assert_eq!(said(None, &[], Some("896")), None);
        let text = said(Some(896), &[], Some("896")).unwrap();
        assert!(text.ends_with("in the 896 pages that a vif may have"), "{text}");
        let text = said(Some(1024), &[], Some("896")).unwrap();
        assert!(text.ends_with("no more for its 2 lists"), "{text}");
        let text = said(Some(600), &[], Some("896")).unwrap();
        assert!(text.contains("600 staging buffers") && text.contains("of 896 that it may have"), "{text}");
        assert!(said(Some(256), &["no pages"], Some("896")).unwrap().ends_with("refused: no pages"));
        assert!(said(Some(256), &[], None).unwrap().contains("no more than slots"));
    }
}
