//! Enums whose values are written as one word each, on a command line, in a status or in a record.

/// Defines an enum whose values are words. `what` names the enum with its article ("a transport"),
/// for the error on an unknown word.
macro_rules! named {
    ($(#[$about:meta])* $of:ident, $what:literal { $($(#[$each:meta])* $value:ident = $name:literal,)* }) => {
        pregrant::named! {
            $(#[$about])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
            $of { $($(#[$each])* $value = $name,)* }
        }

        impl std::str::FromStr for $of {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                let known = || Self::ALL.map(Self::name).join(", ");
                let found = Self::ALL.into_iter().find(|value| value.name() == text);
                found.ok_or_else(|| format!("{text:?} is not {}; known are {}", $what, known()))
            }
        }
    };
}
pub(crate) use named;
