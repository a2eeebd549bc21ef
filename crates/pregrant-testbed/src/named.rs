//! An enum whose values have one name each, for clap and for serde.

/// Defines an enum whose values have one name each: on the command line, in commands to processes,
/// and in records.
#[macro_export]
macro_rules! named {
    ($(#[$about:meta])* pub enum $of:ident { $($(#[$each:meta])* $value:ident = $name:literal,)* }) => {
        pregrant::named! {
            $(#[$about])*
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
            #[derive(serde::Serialize, serde::Deserialize, clap::ValueEnum)]
            $of { $($(#[$each])* #[serde(rename = $name)] #[value(name = $name)] $value = $name,)* }
        }
    };
}
