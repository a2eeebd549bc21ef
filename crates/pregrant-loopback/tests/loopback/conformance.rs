//! The loopback passes the conformance suite, with each method of mapping and each grant table
//! version, and leaves nothing behind.

use pregrant::DomId;
use pregrant_loopback::conformance::{self, CaseStatus, Machine};
use pregrant_loopback::{Audit, Broker, DomainSpec, GrantTableVersion, Hooks, Loopback};
use pregrant_testkit::skip::skip;

const FRONT: DomId = DomId(5);
const BACK: DomId = DomId(0);

struct Domains {
    broker: Broker,
}

impl Machine for Domains {
    type Front = Loopback;
    type Back = Loopback;
    fn pair(&self) -> (Loopback, Loopback) {
        // The guest of the last pair died with its front.
        while let Err(e) = self.broker.create_domain(DomainSpec::guest(FRONT)) {
            assert!(e.to_string().contains("File exists"), "{e}");
            std::thread::yield_now();
        }
        (self.broker.attach(FRONT).unwrap(), self.broker.attach(BACK).unwrap())
    }
    fn successor(&self) -> Option<Loopback> {
        self.broker.attach(BACK).ok()
    }
}

/// Runs the suite, and returns how pages were mapped.
fn passes(table: GrantTableVersion) -> String {
    let broker = Broker::start(None, Hooks::default()).unwrap();
    broker.use_grant_tables(table);
    broker.create_domain(DomainSpec::driver(BACK)).unwrap();
    let machine = Domains { broker };
    let outcomes = conformance::run(&machine);
    outcomes.iter().for_each(|o| println!("{o}"));
    let how = machine.broker.attach(BACK).unwrap().describe();
    println!("{how}");
    assert_eq!(how.contains("grant table: v2"), table == GrantTableVersion::V2, "{how}");
    assert!(outcomes.iter().all(|o| o.status == CaseStatus::Ok), "see above");
    let empty = Audit { domains: 1, ..Audit::default() };
    let mut rounds = 0;
    while machine.broker.audit() != empty {
        // The broker notices the last drop in its own time.
        rounds += 1;
        assert!(rounds < 20_000, "left: {:?}", machine.broker.audit());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    how
}

/// One test in one process: the environment variable is read at each attach.
#[test]
fn the_suite_passes_with_each_way_of_mapping_and_each_table() {
    passes(GrantTableVersion::V2);
    let first = passes(GrantTableVersion::V1);
    if !first.contains("userfaultfd continue") {
        skip(first);
    }
    // SAFETY: no other thread of this test binary reads or writes the environment meanwhile: it has
    // this test only, and the broker's thread of the first run has ended.
    unsafe { std::env::set_var("PREGRANT_NO_UFFD", "1") };
    passes(GrantTableVersion::V1);
}
