//! `pregrant-lab bench net --tx copy,own` as a user runs it: frames from pages of the guest's own,
//! of one page and of several, beside those that are copied to the static pool.

use crate::{lab, text};
use serde_json::Value;

#[test]
fn frames_from_own_pages_are_none_lost_and_none_copied() {
    let args = ["bench", "net", "--path", "copy,gref-mapping", "--dir", "tx", "--size", "1500,65535"];
    let more = ["--tx", "copy,own", "--seconds", "0.05", "--repeats", "1", "--json"];
    let out = lab(&[&args[..], &more, &["-"]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let out = text(&out.stdout);
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("a record")).collect();
    let rows: Vec<_> = lines
        .iter()
        .map(|l| (l["path"].as_str(), l["size_bytes"].as_u64(), l["reuse"].as_str(), l["buffers"].as_u64()))
        .collect();
    let of = |size| {
        let own = (Some("gref-mapping"), Some(size), Some("circular"), Some(256));
        [(Some("copy"), Some(size), None, None), (Some("gref-mapping"), Some(size), None, None), own]
    };
    assert_eq!(rows, [of(1500), of(65535)].concat());
    for line in &lines {
        assert!(line["lost"] == 0 && line["damaged"] == 0 && line["frames"].as_u64() > Some(0), "{line}");
        if line["reuse"] == "circular" {
            assert!(line["hit_rate"] == 1.0 && line["grant_copies"] == 0, "{line}");
            assert!(line["cache_mode"] == "caching" && line["evictions"] == 0, "{line}");
        }
    }
    let out = lab(&[&args[..7], &["65535"], &more[..6]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let said = "From its own pages, gref-mapping tx 65535 B moves";
    assert!(text(&out.stdout).contains(said), "{}", text(&out.stdout));
}
