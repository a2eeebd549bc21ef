//! Who may not name whom (docs/architecture.md, "The parts"): dependencies run one way, and the two
//! ends never meet.

use super::Source;
use super::import::{imports, module_of};
use super::token::Token;

/// Modules below `from` name nothing below any of `never`; `*` is any one name.
struct Wall {
    from: &'static str,
    never: &'static [&'static str],
}

const WALLS: &[Wall] = &[
    Wall { from: "pregrant::net::front", never: &["pregrant::net::back"] },
    Wall { from: "pregrant::net::back", never: &["pregrant::net::front"] },
    Wall { from: "pregrant::net::path", never: &["pregrant::net::back"] },
    Wall {
        from: "pregrant::net::batch",
        never: &["pregrant::net::path", "pregrant::net::back", "pregrant::net::front"],
    },
    Wall {
        from: "pregrant::net::path::*::front",
        never: &["pregrant::net::back", "pregrant::net::path::*::back"],
    },
    Wall {
        from: "pregrant::net::path::*::back",
        never: &["pregrant::net::front", "pregrant::net::path::*::front"],
    },
    Wall { from: "pregrant::blk::front", never: &["pregrant::blk::back"] },
    Wall { from: "pregrant::blk::back", never: &["pregrant::blk::front"] },
    Wall { from: "pregrant::blk::path::*::back", never: &["pregrant::blk::front"] },
    Wall { from: "pregrant::net", never: &["pregrant::blk"] },
    Wall { from: "pregrant::blk", never: &["pregrant::net"] },
    Wall { from: "pregrant::wire", never: &ABOVE_WIRE },
    Wall { from: "pregrant::shm", never: &ABOVE_WIRE },
    Wall {
        from: "pregrant::ring",
        never: &["pregrant::net", "pregrant::blk", "pregrant::xenbus", "pregrant::platform"],
    },
    Wall {
        from: "pregrant::platform",
        never: &["pregrant::net", "pregrant::blk", "pregrant::xenbus", "pregrant::ring"],
    },
    Wall { from: "pregrant::xenbus", never: &["pregrant::net", "pregrant::blk"] },
    Wall {
        from: "pregrant_xenstored",
        never: &[
            "pregrant::net",
            "pregrant::blk",
            "pregrant::grants",
            "pregrant::ring",
            "pregrant::platform",
            "pregrant::xenbus",
            "pregrant::shm",
        ],
    },
    Wall {
        from: "pregrant::grants",
        never: &["pregrant::net", "pregrant::blk", "pregrant::ring", "pregrant::xenbus"],
    },
    // The loopback is made of the host's parts, and a real Xen is not one of them.
    Wall { from: "pregrant_loopback", never: &["pregrant_host::linux"] },
    Wall {
        from: "pregrant_host::ports",
        never: &[
            "pregrant::net::front",
            "pregrant::net::back",
            "pregrant::blk",
            "pregrant::ring",
            "pregrant::platform",
            "pregrant::xenbus",
            "pregrant::xenstore",
            "pregrant::shm",
            "pregrant_host::linux",
        ],
    },
    // Code that serves devices of any class must not know a class.
    Wall { from: "pregrant_host::drivers::registry", never: &ANY_CLASS },
    Wall { from: "pregrant_host::drivers::device_class", never: &ANY_CLASS },
    Wall { from: "pregrant_host::drivers::device_log", never: &ANY_CLASS },
    // Workers and classes need the traits, and nothing of the registry.
    Wall { from: "pregrant_host::drivers::device_class", never: &["pregrant_host::drivers::registry"] },
    Wall { from: "pregrant_host::drivers::worker_pool", never: &["pregrant_host::drivers::registry"] },
    Wall { from: "pregrant_host::drivers::worker_queues", never: &["pregrant_host::drivers::registry"] },
    Wall { from: "pregrant_host::drivers::recovery", never: &ANY_CLASS },
    Wall { from: "pregrant_host::drivers::worker_pool", never: &ANY_CLASS },
    Wall { from: "pregrant_host::drivers::worker_queues", never: &ANY_CLASS },
    Wall { from: "pregrant_host::drivers::throttle", never: &ANY_CLASS },
    Wall { from: "pregrant_host::drivers::fair_scheduler", never: &ANY_CLASS },
    // The laboratory needs no Xen; within it a report is made of records, and a bench uses what it
    // measures.
    Wall { from: "pregrant_lab", never: &["pregrant_host::linux"] },
    Wall { from: "pregrant_testbed", never: &["pregrant_host::linux"] },
    Wall { from: "pregrant_testbed::station", never: &ABOVE_STATION },
    Wall { from: "pregrant_testbed::machine", never: &ABOVE_STATION },
    Wall { from: "pregrant_testbed::toolstack", never: &ABOVE_STATION },
    Wall { from: "pregrant_testbed::process", never: &["pregrant_testbed::testbed"] },
    Wall {
        from: "pregrant_lab::record",
        never: &[
            "pregrant_testbed::testbed",
            "pregrant_lab::report",
            "pregrant_lab::bench",
            "pregrant_lab::demo",
        ],
    },
    Wall {
        from: "pregrant_lab::report",
        never: &[
            "pregrant_testbed::process",
            "pregrant_testbed::testbed",
            "pregrant_lab::bench",
            "pregrant_lab::demo",
        ],
    },
    Wall { from: "pregrant_lab::bench", never: &["pregrant_lab::demo"] },
    // Code that serves guests measures nothing (`product` reads what it is linked with).
    Wall { from: "pregrant_cli", never: &["pregrant_lab"] },
];

/// The parts of a testbed that stations must not name.
const ABOVE_STATION: [&str; 2] = ["pregrant_testbed::process", "pregrant_testbed::testbed"];

/// The classes of devices, and the code that serves them, which code for all classes must not name.
const ANY_CLASS: [&str; 3] = ["pregrant::net", "pregrant::blk", "pregrant_host::drivers::net"];

const ABOVE_WIRE: [&str; 6] = [
    "pregrant::net",
    "pregrant::blk",
    "pregrant::xenbus",
    "pregrant::ring",
    "pregrant::platform",
    "pregrant::port",
];

/// The offences of a file, one line each. Files of tests may name both sides.
pub fn check(file: &str, tokens: &[Token]) -> Vec<String> {
    let Some(module) = module_of(file) else { return Vec::new() };
    if module.iter().any(|part| part == "tests") {
        return Vec::new();
    }
    let walls: Vec<&Wall> = WALLS.iter().filter(|w| below(&module, w.from)).collect();
    let mut offences = Vec::new();
    for import in imports(&module, tokens) {
        for wall in &walls {
            if let Some(never) = wall.never.iter().find(|n| below(&import.path, n)) {
                let (line, path) = (import.line, import.path.join("::"));
                offences
                    .push(format!("{file}:{line}: {} never imports {never}, and names {path}", wall.from));
            }
        }
    }
    offences
}

/// Returns walls that surround no file, for example because a module was renamed: they would have
/// no effect.
pub fn check_walls(sources: &[Source]) -> Vec<String> {
    let modules: Vec<_> = sources.iter().filter_map(|source| module_of(&source.path)).collect();
    let is_idle = |wall: &&Wall| !modules.iter().any(|module| below(module, wall.from));
    let idle = WALLS.iter().filter(is_idle);
    idle.map(|wall| format!("{}: there is no file in {}, and a wall around it", file!(), wall.from)).collect()
}

/// Whether `path` is `top` or is in it.
fn below(path: &[String], top: &str) -> bool {
    let mut parts = path.iter();
    top.split("::").all(|t| parts.next().is_some_and(|p| t == "*" || p == t))
}

#[cfg(test)]
mod tests {
    use super::super::token::tokens;
    use super::{Source, WALLS, check, check_walls};

    #[test]
    fn a_wall_around_no_file_is_refused() {
        let file = |path: &str| Source { path: path.into(), text: String::new() };
        let all = check_walls(&[file("crates/pregrant-host/tests/ring.rs")]);
        assert_eq!(all.len(), WALLS.len());
        let but_one = check_walls(&[file("crates/pregrant-host/src/drivers/fair_scheduler.rs")]);
        assert_eq!(but_one.len(), WALLS.len() - 1);
    }

    #[test]
    fn a_registry_knows_no_class() {
        let names_net = tokens("use crate::drivers::net::Net;\nuse pregrant::net::back::Drained;");
        assert_eq!(check("crates/pregrant-host/src/drivers/registry/lifecycle.rs", &names_net).len(), 2);
        assert_eq!(check("crates/pregrant-host/src/drivers/status.rs", &names_net).len(), 0);
    }

    #[test]
    fn the_ends_never_meet() {
        let names_back = tokens("use crate::net::{back::Tx, offload};");
        assert_eq!(check("crates/pregrant/src/net/front/tx.rs", &names_back).len(), 1);
        assert_eq!(check("crates/pregrant/src/net/offload.rs", &names_back).len(), 0);
        assert_eq!(check("crates/pregrant/src/net/front/tests.rs", &names_back).len(), 0);
    }

    #[test]
    fn a_path_s_ends_know_their_own_side_and_the_store_of_pages_neither() {
        let offences = |file, text| check(file, &tokens(text)).len();
        let front = "crates/pregrant/src/net/path/persistent/front.rs";
        assert_eq!(offences(front, "use crate::net::back::tx::TxQueue;"), 2);
        assert_eq!(offences(front, "use crate::net::path::copy::back::CopyPath;"), 1);
        assert_eq!(offences(front, "use crate::net::front::regions::Regions;"), 0);
        let back = "crates/pregrant/src/net/path/persistent/back.rs";
        assert_eq!(offences(back, "use crate::net::front::regions::Regions;"), 1);
        assert_eq!(offences(back, "use crate::net::back::tx::TxQueue;"), 1);
        assert_eq!(offences(back, "use crate::net::batch::TxBatch;"), 0);
        let batch = "crates/pregrant/src/net/batch/tx.rs";
        assert_eq!(offences(batch, "use crate::net::path::Chain;"), 1);
        assert_eq!(offences("crates/pregrant/src/grants/mapped_pages.rs", "use crate::net::path::Chain;"), 1);
    }

    #[test]
    fn a_longer_name_is_another_module() {
        let text = tokens("use crate::net::backlog;");
        assert_eq!(check("crates/pregrant/src/net/front/tx.rs", &text).len(), 0);
    }

    #[test]
    fn the_laboratory_s_arrows_run_downwards() {
        let offences = |file, text| check(file, &tokens(text)).len();
        let report = "crates/pregrant-lab/src/report/page.rs";
        assert_eq!(offences(report, "use crate::bench::limit;"), 1);
        assert_eq!(offences(report, "use crate::record::Record;"), 0);
        assert_eq!(offences("crates/pregrant-testbed/src/machine.rs", "use pregrant_host::linux::Xen;"), 1);
        let back = "crates/pregrant-cli/src/back/xen.rs";
        assert_eq!(offences(back, "use pregrant_lab::bench;"), 1);
        assert_eq!(offences("crates/pregrant-lab/src/main.rs", "use pregrant_cli::back;"), 0);
    }

    #[test]
    fn ports_know_only_frames() {
        let text = tokens("use pregrant::port::FramePort; use pregrant::ring::FrontRing;");
        assert_eq!(check("crates/pregrant-host/src/ports/pcap.rs", &text).len(), 1);
    }
}
